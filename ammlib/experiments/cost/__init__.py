"""What the method costs: steps, memory, growth, screening and attacks, measured by `python -m ammlib bench`."""
