"""The files that help others to join: they parse, and they name what exists."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.M))
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
HOOKS = ROOT / ".pre-commit-config.yaml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINK = re.compile(r"\]\(([^)#\s]+)(?:#([^)\s]*))?\)")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "bench" / "README.md"])


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def make_targets(commands: str) -> set[str]:
    """The targets of the `make` commands among these lines."""
    lines = re.findall(r"^\s*(?:- run: )?make\b([^#\n]*)", commands, re.M)
    words = [word for line in lines for word in line.split()]
    return {word for word in words if re.fullmatch(r"[a-z][a-z0-9-]*", word)}


def code_of(path: Path) -> str:
    """A page's code, in blocks and within sentences; of any other file all of it."""
    text = path.read_text()
    if path.suffix != ".md":
        return text
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", text)])


def test_the_workflow_runs_the_tests_on_every_python() -> None:
    job = loaded(WORKFLOW)["jobs"]["test"]
    versions = job["strategy"]["matrix"]["python"]
    classifiers = PROJECT["project"]["classifiers"]
    named = [each.rpartition(" ")[2] for each in classifiers if ":: Python :: 3." in each]
    assert versions == named == ["3.11", "3.12", "3.13"]
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"
    [java] = [step for step in job["steps"] if "setup-java" in step.get("uses", "")]
    assert java["with"]["java-version"] == "17"
    commands = "\n".join(step["run"] for step in job["steps"] if "run" in step)
    assert make_targets(commands) == {"test", "test-e2e"}


@pytest.mark.parametrize("path", [WORKFLOW, *PAGES], ids=lambda path: path.name)
def test_make_targets_that_are_named_exist(path: Path) -> None:
    assert make_targets(code_of(path)) <= TARGETS


def test_contributing_names_the_targets_of_the_day() -> None:
    text = code_of(ROOT / "CONTRIBUTING.md")
    assert make_targets(text) >= {"check", "test", "test-fast", "bench"}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_benchmarks_that_are_named_exist(path: Path) -> None:
    for name in re.findall(r"python -m (bench[\w.]*)", path.read_text()):
        module = ROOT / name.replace(".", "/")
        assert module.with_suffix(".py").exists() or (module / "__main__.py").exists(), name


def test_files_in_the_map_of_the_benchmarks_exist() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", (ROOT / "bench" / "README.md").read_text(), re.M)
    assert {directory for directory, _ in rows} >= {"kit", "nsqd", "clients", "spark"}
    for directory, contents in rows:
        if (ROOT / "bench" / directory).is_dir():
            for name in re.findall(r"`([\w/]+)`", contents):
                file = ROOT / "bench" / directory / name
                assert file.is_dir() or file.with_suffix(".py").exists(), f"{directory}/{name}"


def test_hooks_use_the_tools_of_the_environment_alone() -> None:
    repos = loaded(HOOKS)["repos"]
    assert [each["repo"] for each in repos] == ["local"]
    hooks = {hook["id"]: hook for hook in repos[0]["hooks"]}
    assert set(hooks) == {"ruff", "ruff-format", "mypy"}
    checks = (ROOT / "Makefile").read_text()
    for hook in hooks.values():
        tool = hook["entry"].split()[0]
        assert hook["language"] == "system"
        assert tool.startswith(".venv/bin/")
        assert f"$(BIN)/{tool.removeprefix('.venv/bin/')}" in checks


def test_the_licence_is_the_one_that_the_metadata_names() -> None:
    project = PROJECT["project"]
    assert project["license"] == "MIT"
    for name in (*project["license-files"], project["readme"]):
        assert (ROOT / name).is_file()
    assert (ROOT / "LICENSE").read_text().startswith("MIT License\n")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in LINK.findall(path.read_text()):
        if "://" in target:
            continue
        file = path.parent / target
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), f"{target}#{anchor}"


def test_links_within_a_page_lead_somewhere() -> None:
    for path in PAGES:
        for anchor in re.findall(r"\]\(#([^)]+)\)", path.read_text()):
            assert anchor in anchors(path), f"{path.name}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
