import sys

from ammlib.cli import main

sys.exit(main())
