"""Everything that changes training: one class and one row of the registry for each method."""
