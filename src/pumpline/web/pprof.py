"""Paths of Go's profiler that make sense in any daemon here, for tools and people used to them."""

import sys

from pumpline.web.replies import HTML, Reply, plain_reply
from pumpline.web.server import Request


class PprofEndpoints:
    def __init__(self, *pages: str) -> None:
        """`pages`: what there is below /debug/pprof/, for the index."""
        links = "".join(f'<li><a href="{page}">{page}</a></li>' for page in pages)
        self._index = (
            "<html><head><title>/debug/pprof/</title></head><body>/debug/pprof/"
            f"<ul>{links}</ul></body></html>\n"
        )

    async def index(self, request: Request) -> Reply:
        return plain_reply(self._index, content_type=HTML)

    async def cmdline(self, request: Request) -> Reply:
        return plain_reply("\0".join(sys.orig_argv))

    async def unavailable(self, request: Request) -> Reply:
        return plain_reply("there is no such profile of this process\n", status=404)
