"""A hook of mkdocs: pages and files of the repository that docs/ links to become part of the site.

docs/ is written to be read in the repository as well, so its links leave docs/
(`../ARCHITECTURE.md`). On the site, such a file is at `project/<path>`, with its own links followed
in the same way. A link to a directory is shown as text.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs"
PLACE = "project"
LINK = re.compile(
    r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is linked to, and what that links to."""
    pages = [f"{DOCS}/{page.src_uri}" for page in files.documentation_pages()]
    waiting = [target for page in pages for target in targets(page)]
    added: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in added:
            continue
        added.add(path)
        where = f"{PLACE}/{path}"
        if path.endswith(".md"):
            text = rewritten((ROOT / path).read_text(), path)
            files.append(File.generated(config, where, content=text))
            waiting += targets(path)
        else:
            files.append(File.generated(config, where, content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    return markdown if uri.startswith(PLACE) else rewritten(markdown, f"{DOCS}/{uri}")


def targets(path: str) -> list[str]:
    """The files outside docs/ that a page links to, from the root."""
    found = [resolved(path, match[3]) for match in LINK.finditer((ROOT / path).read_text())]
    return [each for each in found if not each.startswith(DOCS) and (ROOT / each).is_file()]


def resolved(path: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def place_of(path: str) -> str:
    """Where a file of the repository is on the site."""
    return path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else f"{PLACE}/{path}"


def rewritten(text: str, path: str) -> str:
    """The links of a page of the repository, as they are on the site."""

    def link(match: re.Match[str]) -> str:
        mark, label, target, anchor = match.groups()
        wanted = resolved(path, target)
        if not (ROOT / wanted).is_file():
            return label if (ROOT / wanted).is_dir() else match[0]
        here = posixpath.dirname(place_of(path))
        return f"{mark}[{label}]({posixpath.relpath(place_of(wanted), here or '.')}{anchor or ''})"

    return LINK.sub(link, text)
