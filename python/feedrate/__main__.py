"""``python -m feedrate``: the command ``feedrate``."""

import sys

from feedrate._cli import main

if __name__ == "__main__":
    sys.exit(main())
