"""Two pages of Go's profiler that make sense in any daemon here; its profiles do not."""

import sys

from pumpline.web.replies import HTML, Reply, plain_reply
from pumpline.web.request import Request

_INDEX = (
    "<html><head><title>/debug/pprof/</title></head><body>/debug/pprof/"
    '<ul><li><a href="/debug/pprof/cmdline">cmdline</a></li></ul></body></html>\n'
)


def pprof_index(request: Request) -> Reply:
    return plain_reply(_INDEX, content_type=HTML)


def command_line(request: Request) -> Reply:
    return plain_reply("\0".join(sys.orig_argv))
