"""What the method costs and how tight the margin is: measured by `python -m ammlib bench`, stored in results/bench."""

from ammlib.bench.nets import CASES, VARIANTS
from ammlib.bench.run import DEFAULT, OUTPUT, PARTS, bench
from ammlib.bench.store import load

__all__ = ["CASES", "DEFAULT", "OUTPUT", "PARTS", "VARIANTS", "bench", "load"]
