"""Routes: what answers a method and a path, and what becomes of requests that nothing answers.

| request                                                       | resolves to        |
|---------------------------------------------------------------|--------------------|
| a route's path with one of its methods                        | `Found`            |
| a route's path but for a final slash, its case, or            | `Redirect` to the  |
| `//`, `.` and `..` in it, with one of its methods             | route's path       |
| a route's path with another method, OPTIONS included          | `Allowed`          |
| anything else                                                 | None               |

The last segments of a route may be variables, written `:name`; each matches anything but nothing.
Pure: knows no requests and no replies, and does not care what a route leads to.
"""

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

OPTIONS = "OPTIONS"

T = TypeVar("T")


class Found(NamedTuple, Generic[T]):
    target: T
    variable: str  # what stands for `:name`, or empty; of several, with a slash between them


class Redirect(NamedTuple):
    path: str


class Allowed(NamedTuple):
    methods: list[str]  # sorted, with OPTIONS


class Routes(Generic[T]):
    def __init__(self, table: Mapping[tuple[str, str], T]) -> None:
        """`table` leads from (method, path) to the target."""
        self._paths: dict[str, dict[str, T]] = {}
        self._prefixes: dict[tuple[str, int], dict[str, T]] = {}  # with the number of variables
        self._methods = {method for method, _ in table}
        for (method, path), target in table.items():
            prefix, colon, _ = path.partition(":")
            if colon:
                key = prefix, path.count("/:")
                self._prefixes.setdefault(key, {})[method] = target
            else:
                self._paths.setdefault(path, {})[method] = target
        self._counts = sorted({count for _, count in self._prefixes})
        prefixes = [prefix for prefix, _ in self._prefixes]
        self._spelling = {path.lower(): path for path in (*self._paths, *prefixes)}

    def resolve(self, method: str, path: str) -> Found[T] | Redirect | Allowed | None:
        targets, variable = self._lookup(path)
        if method in targets:
            return Found(targets[method], variable)
        if method in self._methods:
            better = self._correct(method, path)
            if better:
                return Redirect(better)
        if targets:
            return Allowed(sorted({*targets, OPTIONS}))
        return None

    def _lookup(self, path: str) -> tuple[dict[str, T], str]:
        """Targets by method, and the variable."""
        if path in self._paths:
            return self._paths[path], ""
        for count in self._counts:
            prefix, variable = _split(path, count)
            if variable and (prefix, count) in self._prefixes:
                return self._prefixes[prefix, count], variable
        return {}, ""

    def _correct(self, method: str, path: str) -> str:
        """The path that was meant, or empty."""
        clean = clean_path(path)
        for candidate in (_toggle_slash(path), clean, _toggle_slash(clean)):
            spelled = self._spelled(candidate)
            if method in self._lookup(spelled)[0]:
                return spelled
        return ""

    def _spelled(self, path: str) -> str:
        """`path` with upper and lower case as in the table; a variable stays as it is."""
        whole = self._spelling.get(path.lower())
        if whole is not None:
            return whole
        for count in self._counts:
            prefix, variable = _split(path, count)
            if variable and prefix.lower() in self._spelling:
                return self._spelling[prefix.lower()] + variable
        return path


def clean_path(path: str) -> str:
    """The path without empty, `.` and `..` segments; a final slash stays."""
    kept: list[str] = []
    segments = path.split("/")
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    end = "/" if kept and segments[-1] in ("", ".", "..") else ""
    return "/" + "/".join(kept) + end


def _toggle_slash(path: str) -> str:
    return path[:-1] if path.endswith("/") else path + "/"


def _split(path: str, count: int) -> tuple[str, str]:
    """What is before the last `count` segments, and these; no segments if one of them is empty."""
    segments = path.split("/")
    last = segments[-count:]
    if len(last) == len(segments) or not all(last):
        return path, ""
    return "/".join(segments[:-count]) + "/", "/".join(last)
