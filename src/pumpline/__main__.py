"""`python -m pumpline`: the `pumpline` command."""

import sys

from pumpline.tools.pumpline import main

if __name__ == "__main__":
    sys.exit(main())
