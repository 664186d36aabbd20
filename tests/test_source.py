"""The tree keeps its own rules: sizes, names, and who may import whom."""

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
IN_BACKTICKS = re.compile(r"`([A-Za-z_][A-Za-z_0-9.]*)`")
CLASS_NAME = re.compile(r"[A-Z][a-z]+[A-Za-z]*")
FORBIDDEN_WORDS = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "base"}

# core is sans-IO: time and randomness are arguments, and the world is someone else's.
CORE_FORBIDDEN_IMPORTS = {
    "asyncio",
    "logging",
    "os",
    "pathlib",
    "random",
    "selectors",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
}
# kernels picks its form by an environment variable, once, when it is imported.
CORE_ALLOWED_IMPORTS = {"kernels.py": {"os"}}

# pumpline.sync has the names of pumpline.client, whose blocking form it is.
NAMES_OF_SYNC = {"Consumer", "Producer", "TopicGroup"}

SOURCES = sorted(path for path in SRC.rglob("*.py*") if path.suffix in (".py", ".pyx"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MODULES = [path for path in SOURCES if path.suffix == ".py"]


def relative(path: Path) -> str:
    return str(path.relative_to(SRC))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imported_packages(tree: ast.AST) -> set[str]:
    """Top-level names of all absolute imports, wherever in the file they are."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def test_there_are_sources_to_look_at() -> None:
    assert SRC / "pumpline" / "core" / "text" / "flags.py" in MODULES


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_no_file_is_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES_MAX


def test_no_test_file_is_too_long() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in TESTS}
    assert {path: count for path, count in lines.items() if count > FILE_LINES_MAX} == {}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_no_function_is_too_long(path: Path) -> None:
    too_long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in functions(ast.parse(path.read_text()))
        if node.end_lineno is not None and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    }
    assert too_long == {}


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_names_are_nouns_of_the_domain(path: Path) -> None:
    words = {
        word
        for part in path.relative_to(SRC).with_suffix("").parts
        for word in part.lower().split("_")
    }
    assert words & FORBIDDEN_WORDS == set()


def test_no_two_public_classes_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for path in MODULES:
        names = {
            node.name
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        }
        if path.is_relative_to(SRC / "pumpline" / "sync"):
            names -= NAMES_OF_SYNC
        for name in names:
            places.setdefault(name, []).append(relative(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", sorted((SRC / "pumpline" / "core").rglob("*.py")), ids=relative)
def test_core_touches_nothing_outside_itself(path: Path) -> None:
    forbidden = CORE_FORBIDDEN_IMPORTS - CORE_ALLOWED_IMPORTS.get(path.name, set())
    assert imported_packages(ast.parse(path.read_text())) & forbidden == set()


def test_tls_clients_verify_in_one_way() -> None:
    """`core/protocol/verification.py` makes the context, for every Python."""
    makers = {relative(path) for path in MODULES if "create_default_context" in path.read_text()}
    assert makers == {"pumpline/core/protocol/verification.py"}


def test_unit_tests_are_in_the_folders_of_their_modules() -> None:
    unit = ROOT / "tests" / "unit"
    rooms = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")}
    packages = (SRC, SRC / "pumpline")
    assert not [room for room in rooms if not any((top / room).is_dir() for top in packages)]


def test_layers_import_only_downwards() -> None:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    linted = subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(SRC), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr


# Words in backticks that look like names of ours, and are those of others.
FOREIGN_NAMES = {"Accept", "Date", "Origin", "http.CrossOriginProtection"}


def test_names_in_backticks_exist() -> None:
    """A class, or a module and what is in it, that a comment or docstring names in backticks."""
    names_of = {path: code_names(path) for path in MODULES}
    all_names = set().union(*names_of.values())
    files: dict[str, list[Path]] = {}  # of a package or module, by each end of its dotted name
    for path in MODULES:
        parts = path.relative_to(SRC).with_suffix("").parts
        for stop in range(1, len(parts) + 1):
            for start in range(stop):
                files.setdefault(".".join(parts[start:stop]), []).append(path)
    packages = {path.parent.name for path in MODULES}
    missing = []
    for path in MODULES:
        for word in words_in_backticks(path) - FOREIGN_NAMES:
            head, _, last = word.rpartition(".")
            if head.split(".")[0] in packages:
                known = word in files or any(last in names_of[each] for each in files.get(head, ()))
            else:
                known = bool(head) or not CLASS_NAME.fullmatch(word) or word in all_names
            if not known:
                missing.append(f"{relative(path)}: `{word}`")
    assert missing == []


def words_in_backticks(path: Path) -> set[str]:
    found: set[str] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT or (
            token.type == tokenize.STRING and token.string.startswith('"""')
        ):
            found.update(IN_BACKTICKS.findall(token.string))
    return found


def code_names(path: Path) -> set[str]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}
