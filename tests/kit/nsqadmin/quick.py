"""nsqadmin that looks at its cluster eight times as often: what a test waits for is there sooner.

Run as a program. All else is the nsqadmin command, which `test_start.py` runs as users do.
"""

import sys

from pumpline.nsqadmin.api import consumers
from pumpline.nsqadmin.live import closeups, poller
from pumpline.tools.nsqadmin import main

TIMES = 8

if __name__ == "__main__":
    poller.FAST_S /= TIMES
    closeups.EVERY_S /= TIMES
    consumers.FRESH_S /= TIMES
    sys.exit(main())
