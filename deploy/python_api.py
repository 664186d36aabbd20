"""The reference page of the Python library, from the signatures and docstrings of its modules.

Annotations are shown as the source has them, defaults as values. The docstring of `__init__` is a
table when its lines are `name   meaning`; fields of a dataclass have their docstring below them, as
do other attributes of a class.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import pairwise
from types import ModuleType
from typing import Any

import pumpline.client
import pumpline.sync
import pumpline.testing
from pumpline.client.consuming.subscription import Counters

HEAD = (
    "<!-- Made by `make generated` from the docstrings of the library: change them there. -->\n\n"
)
INTRO = """# Python API

All public classes of `pumpline.client`, `pumpline.sync` and `pumpline.testing`.
[client.md](client.md) and [consuming.md](consuming.md) explain how to use them, with programs to
copy.
"""
LINE_CHARACTERS_MAX = 96
RAISED_BY_USERS = (pumpline.client.Retry, pumpline.client.Drop)
FIRST = ("Producer", "Consumer", "Message", "Batch", "LocalNsqd")
# Public in the code, for other modules of ours.
INTERNAL = frozenset(
    {
        "Consumer.answer_from_threads",
        "Consumer.is_in_handler",
    }
)
NOT_MADE_BY_USERS = ("Message",)
OPTION = re.compile(r"^(\w+) {2,}(\S.*)$")

Member = tuple[str, Any]


class Documented:
    """A class, what its source says, and the Markdown of it."""

    def __init__(self, kind: type, prefix: str = "") -> None:
        self.kind = kind
        self.name = kind.__name__
        self.title = prefix + self.name

    @cached_property
    def lineage(self) -> list[type]:
        """The class, and the classes of ours that it inherits from."""
        return [
            each
            for each in self.kind.__mro__
            if each.__module__.startswith("pumpline.") and not getattr(each, "_is_protocol", False)
        ]

    @cached_property
    def doc(self) -> str:
        """A docstring of its own: dataclasses get a generated one."""
        doc = inspect.cleandoc(self.kind.__doc__ or "")
        return "" if doc.startswith(f"{self.name}(") else doc

    @cached_property
    def attribute_docs(self) -> dict[str, str]:
        """The docstrings below fields and attributes, by name."""
        return {name: doc for each in self.lineage for name, doc in attribute_docs(each).items()}

    @cached_property
    def members(self) -> list[Member]:
        """Public methods and properties, in the order of the source."""
        found: dict[str, Any] = {}
        for each in self.lineage:
            for name, member in vars(each).items():
                is_code = inspect.isfunction(member) or isinstance(member, property | classmethod)
                if is_code and not name.startswith("_") and f"{self.name}.{name}" not in INTERNAL:
                    found.setdefault(name, member)
        return list(found.items())

    def markdown(self, seen: set[object]) -> Iterator[str]:
        """Methods in `seen` are documented in a class above; adds those of this class to it."""
        yield f"### {self.title}"
        if dataclasses.is_dataclass(self.kind):
            yield markdown_of(self.doc)
            yield table(("field", "default", "meaning"), self._fields())
        else:
            yield from self._constructor()
            if rows := list(self._attributes()):
                yield table(("attribute", "meaning"), rows)
        inherited: list[str] = []
        for name, member in self.members:
            if isinstance(member, property):
                continue
            if member in seen:
                inherited.append(f"`{name}`")
                continue
            seen.add(member)
            yield f"#### {self.title}.{name}"
            yield code(signature(inspect.unwrap(getattr(self.kind, name)), name))
            yield markdown_of(self._doc_of(name, inspect.getdoc(member)))
        if inherited:
            yield f"Also {', '.join(inherited)}, as above."

    def _constructor(self) -> Iterator[str]:
        initialize = self.kind.__dict__.get("__init__")
        is_shown = initialize is not None and self.name not in NOT_MADE_BY_USERS
        if is_shown:
            yield code(signature(initialize, self.name))
        yield markdown_of(self._doc_of("", self.doc))
        if is_shown and initialize.__doc__:
            yield options_of(inspect.cleandoc(initialize.__doc__))

    def _fields(self) -> Iterator[tuple[str, ...]]:
        for each in dataclasses.fields(self.kind):
            default = "" if each.default is dataclasses.MISSING else f"`{each.default!r}`"
            doc = self._doc_of(each.name, self.attribute_docs.get(each.name))
            yield f"`{each.name}`", default, one_line(doc)

    def _attributes(self) -> Iterator[tuple[str, ...]]:
        for name, member in self.members:
            if isinstance(member, property):
                yield f"`{name}`", one_line(self._doc_of(name, inspect.getdoc(member)))
        for name, doc in self.attribute_docs.items():
            yield f"`{name}`", one_line(doc)

    def _doc_of(self, name: str, doc: str | None) -> str:
        if not doc:
            where = ".".join(filter(None, (self.kind.__module__, self.name, name)))
            raise ValueError(f"{where} has no docstring")
        return doc


def python_api_page() -> str:
    parts = [HEAD + INTRO.rstrip()]
    parts += section(
        pumpline.client, also=[Counters], errors=lambda kind: issubclass(kind, Exception)
    )
    parts += section(pumpline.sync)
    parts += section(pumpline.testing)
    return "\n\n".join(part for part in parts if part) + "\n"


def section(
    module: ModuleType,
    *,
    also: list[type] | None = None,
    errors: Callable[[type], bool] = lambda kind: False,
) -> Iterator[str]:
    """A module: its classes, then its exceptions in one table."""
    yield f"## {module.__name__}"
    yield markdown_of(inspect.cleandoc(module.__doc__ or ""))
    kinds = public_classes(module)
    own = [kind for kind in kinds if is_documented_by(module, kind)]
    prefix = "sync." if module is pumpline.sync else ""
    seen: set[object] = set()
    for kind in [*own, *(also or [])]:
        if not errors(kind):
            yield from Documented(kind, prefix).markdown(seen)
    if raised := [kind for kind in own if errors(kind)]:
        yield "### Exceptions"
        yield table(("exception", "is a", "meaning"), map(error_row, by_parent(raised)))


def public_classes(module: ModuleType) -> list[type]:
    names = sorted(module.__all__, key=lambda name: FIRST.index(name) if name in FIRST else 99)
    return [each for name in names if inspect.isclass(each := getattr(module, name))]


def is_documented_by(module: ModuleType, kind: type) -> bool:
    """Whether the class is the module's own, and not one that another module documents; nor a
    table of keyword arguments for type checkers."""
    is_own = module is pumpline.client or kind.__module__.startswith(module.__name__)
    return is_own and not hasattr(kind, "__required_keys__")


def by_parent(kinds: list[type]) -> list[type]:
    """Each exception after the ones that it is, those that users raise first."""

    def ancestry(kind: type) -> list[str]:
        line = [kind]
        while line[-1].__bases__[0] is not Exception:
            line.append(line[-1].__bases__[0])
        return [each.__name__ for each in reversed(line)]

    return sorted(kinds, key=lambda kind: (kind not in RAISED_BY_USERS, ancestry(kind)))


def error_row(kind: type) -> tuple[str, ...]:
    bases = ", ".join(f"`{each.__name__}`" for each in kind.__bases__)
    shown = kind.__name__
    if kind in RAISED_BY_USERS:
        shown = signature(kind.__init__, shown)
    attributes = "".join(
        f" `{name}`: {one_line(doc)}" for name, doc in attribute_docs(kind).items()
    )
    return f"`{shown}`", bases, one_line(inspect.getdoc(kind)) + attributes


# -- Signatures -----------------------------------------------------------------------------------


def signature(function: Any, name: str) -> str:
    """As the source annotates it, with the values of defaults."""
    node = parsed(function)
    parameters = inspect.signature(function).parameters
    words: list[str] = []
    for argument, separator in arguments_of(node):
        if separator:
            words.append(separator)
        if argument is None or argument.arg in ("self", "cls"):
            continue
        annotation = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
        default = parameters[argument.arg].default if argument.arg in parameters else None
        has_default = argument.arg in parameters and default is not inspect.Parameter.empty
        star = stars(parameters, argument.arg)
        words.append(
            f"{star}{argument.arg}{annotation}" + (f" = {default!r}" if has_default else "")
        )
    is_constructor = function.__name__ == "__init__"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and not is_constructor else ""
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    line = f"{prefix}{name}({', '.join(words)}){returns}"
    if len(line) <= LINE_CHARACTERS_MAX:
        return line
    inner = "".join(f"    {word},\n" for word in words)
    return f"{prefix}{name}(\n{inner}){returns}"


def parsed(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef:
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return node


def arguments_of(
    node: ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[tuple[ast.arg | None, str]]:
    """Each argument, with the `*` that keyword arguments need before the first of them."""
    given = node.args
    for each in [*given.posonlyargs, *given.args]:
        yield each, ""
    if given.vararg:
        yield given.vararg, ""
    elif given.kwonlyargs:
        yield None, "*"
    for each in given.kwonlyargs:
        yield each, ""
    if given.kwarg:
        yield given.kwarg, ""


def stars(parameters: Any, name: str) -> str:
    kind = parameters[name].kind if name in parameters else None
    return {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(
        kind, ""
    )


def attribute_docs(kind: type) -> dict[str, str]:
    """The strings below annotated names of a class body, and below attributes in `__init__`."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    statements = [body.body]
    statements += [
        each.body
        for each in body.body
        if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    ]
    for block in statements:
        for statement, after in pairwise(block):
            name = assigned_name(statement)
            if name and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                found[name] = inspect.cleandoc(str(after.value.value))
    return found


def assigned_name(statement: ast.stmt) -> str:
    """Of `name: type = …`, `self.name: type = …` and `self.name = …`; else empty."""
    if isinstance(statement, ast.AnnAssign):
        target: ast.expr = statement.target
    elif isinstance(statement, ast.Assign):
        target = statement.targets[0]
    else:
        return ""
    if isinstance(target, ast.Name | ast.Attribute):
        name = target.id if isinstance(target, ast.Name) else target.attr
        return "" if name.startswith("_") else name
    return ""


# -- Markdown -------------------------------------------------------------------------------------


def markdown_of(doc: str) -> str:
    """Paragraphs as they are; indented lines are a program."""
    parts: list[str] = []
    for block in re.split(r"\n\n(?=\S)|\n\n(?= {4}\S)", doc):
        if block.startswith("    "):
            text = textwrap.dedent(block)
            if parts and parts[-1].startswith("```"):
                parts[-1] = parts[-1].removesuffix("\n```") + "\n\n" + text + "\n```"
            else:
                parts.append(code(text))
        else:
            parts.append(block)
    return "\n\n".join(parts)


def options_of(doc: str) -> str:
    """A table, if the lines are `name   meaning`; lines that go on are indented."""
    lines = doc.splitlines()
    if not OPTION.match(lines[0]):
        return markdown_of(doc)
    rows: list[list[str]] = []
    for line in lines:
        if match := OPTION.match(line):
            rows.append([f"`{match[1]}`", match[2]])
        elif line.startswith(" "):
            rows[-1][1] += f" {line.strip()}"
    return table(("option", "meaning"), rows)


def table(head: tuple[str, ...], rows: Any) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return "\n".join(lines)


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def one_line(doc: str | None) -> str:
    return " ".join((doc or "").split())


def code(text: str) -> str:
    return f"```python\n{text}\n```"
