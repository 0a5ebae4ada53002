"""What the method costs: measured by `python -m ammlib bench`, stored in results/bench, shown by notebook 08."""

from ammlib.bench.nets import CASES, VARIANTS
from ammlib.bench.run import DEFAULT, OUTPUT, PARTS, bench
from ammlib.bench.store import load

__all__ = ["CASES", "DEFAULT", "OUTPUT", "PARTS", "VARIANTS", "bench", "load"]
