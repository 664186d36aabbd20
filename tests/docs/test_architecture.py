"""ARCHITECTURE.md: its layers are those of the import contracts, and its paths exist."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS = PROJECT["tool"]["importlinter"]["contracts"]
PATHS = re.findall(r"`([a-z_]+(?:/[a-z_]+)+(?:\.py)?)`", PAGE)


def test_layers_are_those_of_the_contracts() -> None:
    [block] = re.findall(r"## Who may import whom\n.*?```\n(.*?)```", PAGE, re.S)
    told = {tuple(line.split(":")[0:2]) for line in re.sub(" +", " ", block).splitlines()}
    meant = {
        (container, " " + " > ".join(re.sub("[()]", "", layer) for layer in contract["layers"]))
        for contract in CONTRACTS
        if contract["type"] == "layers"
        for container in contract["containers"]
    }
    assert told == meant


def test_every_other_contract_is_named() -> None:
    others = {contract["name"] for contract in CONTRACTS if contract["type"] != "layers"}
    assert {name for name in others if f"- {name}\n" not in PAGE} == set()


def test_there_are_twelve_rooms() -> None:
    [table] = re.findall(r"## Twelve rooms\n.*?\n((?:\|[^\n]*\n)+)", PAGE, re.S)
    assert len(table.splitlines()) == 2 + 12


@pytest.mark.parametrize("path", sorted(set(PATHS)))
def test_paths_exist(path: str) -> None:
    assert any((root / path).exists() for root in (ROOT, ROOT / "src", ROOT / "src" / "pumpline"))
