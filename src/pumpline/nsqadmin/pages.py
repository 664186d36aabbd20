"""The page and its files: HTML, scripts, styles.

All addresses of the page are answered with the same HTML; its script finds out which it is. The
HTML says who asks and whether they chose light or dark: a script that asked for that would come
between the page and its first paint. Browsers may load nothing from elsewhere, run no script that
is written into a page, and show it in no frame.
Files are read once, or each time with `--dev-static-dir`.
"""

import gzip
import hashlib
import html
from collections.abc import Callable
from pathlib import Path

import msgspec

from pumpline.web.replies import HTML, HttpError, Reply, plain_reply
from pumpline.web.request import Request

PAGE_DIRECTORY = Path(__file__).parent / "page"
INDEX = "index.html"
BASE_MARK = b"{{base}}"
THEME_MARK = b"{{theme}}"
SESSION_MARK = b"{{session}}"
THEME_COOKIE = "nsqadmin-theme"
THEMES = {name: b' data-theme="%b"' % name.encode() for name in ("light", "dark")}
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}
CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": HTML,
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml; charset=utf-8",
    ".woff2": "font/woff2",
}
SMALL_BYTES = 1024  # not worth compressing


class PageFile(msgspec.Struct, frozen=True):
    content: bytes
    compressed: bytes
    content_type: str
    tag: str


class Pages:
    def __init__(self, root: str, session: Callable[[Request], bytes], directory: str = "") -> None:
        """`root` is the base path without its final slash; `session` is JSON for the page;
        `directory` is in place of our files."""
        self._session = session
        self._root = root.encode()
        self._directory = Path(directory) if directory else PAGE_DIRECTORY
        self._reads_again = bool(directory)
        self._files: dict[str, PageFile] = {}

    def page(self, request: Request) -> Reply:
        """HTML for who asks: nobody else may be given it."""
        content = self._file(INDEX).content
        session = html.escape(self._session(request).decode()).encode()
        content = content.replace(THEME_MARK, THEMES.get(_chosen_theme(request), b""))
        content = content.replace(SESSION_MARK, session)  # the last: a user may be called {{base}}
        return self._reply(request, _page_file(content, HTML), caching="private, no-cache")

    def asset(self, request: Request) -> Reply:
        name = request.variable
        if name == INDEX:
            return not_found()
        try:
            return self._reply(request, self._file(name))
        except HttpError:
            return not_found()

    def _file(self, name: str) -> PageFile:
        if name not in self._files or self._reads_again:
            self._files[name] = self._read(name)
        return self._files[name]

    def _read(self, name: str) -> PageFile:
        """Only files that are in the directory itself: the name comes from a client."""
        try:
            path = next((each for each in self._directory.iterdir() if each.name == name), None)
            if path is None or path.suffix not in CONTENT_TYPES:
                raise HttpError(404, "NOT_FOUND")
            content = path.read_bytes()
        except OSError:
            raise HttpError(404, "NOT_FOUND") from None
        if name == INDEX:
            content = content.replace(BASE_MARK, self._root)
        return _page_file(content, CONTENT_TYPES[path.suffix])

    def _reply(self, request: Request, file: PageFile, *, caching: str = "no-cache") -> Reply:
        headers = {
            "Content-Type": file.content_type,
            "Cache-Control": caching,
            "ETag": file.tag,
            "Vary": "Accept-Encoding",
            **SECURITY_HEADERS,
        }
        if request.header("if-none-match") == file.tag:
            return Reply(status=304, headers=headers)
        if takes_gzip(request) and len(file.content) > SMALL_BYTES:
            return Reply(body=file.compressed, headers={**headers, "Content-Encoding": "gzip"})
        return Reply(body=file.content, headers=headers)


def _page_file(content: bytes, content_type: str) -> PageFile:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return PageFile(content, gzip.compress(content, mtime=0), content_type, tag)


def _chosen_theme(request: Request) -> str:
    for value in request.headers("cookie"):
        for cookie in value.split(";"):
            name, _, chosen = cookie.strip().partition("=")
            if name == THEME_COOKIE:
                return chosen
    return ""


def not_found() -> Reply:
    """As NSQ answers for files."""
    return plain_reply("NOT_FOUND", status=404)


def takes_gzip(request: Request) -> bool:
    for value in request.headers("accept-encoding"):
        for coding in value.lower().split(","):
            name, _, weight = coding.partition(";")
            if name.strip() in ("gzip", "*") and weight.replace(" ", "") not in ("q=0", "q=0.0"):
                return True
    return False
