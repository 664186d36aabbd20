"""A whole data directory damaged at random: nsqd starts, and delivers what is still whole.

Only damage to nsqd.dat may keep it from starting, with one FATAL line. Whatever is delivered can be
finished, and the directory is good for the next start.
"""

import random
from pathlib import Path

import pytest

from pumpline.log.directory import Directory
from pumpline.web.sockets import StartupError
from tests.fuzz.conftest import Rounds
from tests.kit.fuzz.deadline import within
from tests.kit.fuzz.directories import (
    FLAGS,
    MANIFEST,
    METADATA,
    Template,
    drain,
    make_template,
    still_owed,
)
from tests.kit.fuzz.inprocess import InProcess
from tests.kit.fuzz.mutation import mutated

SEEDS = range(1, 13)
LIMIT_S = 60.0


@pytest.fixture(scope="module", params=["stopped", "crashed"])
def template(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Template:
    path = tmp_path_factory.mktemp("template") / "data"
    return make_template(path, crashed=request.param == "crashed")


def damage(rng: random.Random, path: Path) -> set[str]:
    """Damages one to four files; returns their names.

    A manifest that can still be read, but says something else, is made unreadable: it cannot be
    told from a good one (see test_found).
    """
    files = sorted(file for file in path.rglob("*") if file.is_file())
    chosen = rng.sample(files, rng.randint(1, 4))
    for file in chosen:
        data = file.read_bytes()
        kinds = (
            lambda data=data: mutated(rng, data),
            lambda data=data: bytes(len(data)),
            lambda: rng.randbytes(rng.choice((0, 1, 50, 3000))),
        )
        file.write_bytes(rng.choices(kinds, (8, 1, 1))[0]())
        if file.name == MANIFEST and Directory(str(path)).read_manifest(file.parent.name):
            file.write_bytes(b"")
    return {str(file.relative_to(path)) for file in chosen}


def test_damaged_directory_costs_what_is_damaged(
    rounds: Rounds, template: Template, tmp_path: Path
) -> None:
    path = tmp_path / "data"

    def play(rng: random.Random) -> None:
        template.copy_to(path)
        damaged = damage(rng, path)
        owed = still_owed(template, path)
        try:
            with within(LIMIT_S):
                check(path, owed)
        except StartupError:
            assert damaged & {METADATA, "format"}
        except BaseException as error:
            error.add_note(f"damaged: {sorted(damaged)}")
            raise

    def check(path: Path, owed: dict[tuple[str, str], set[bytes]]) -> None:
        with InProcess(path, FLAGS) as nsqd:
            for (topic, channel), bodies in owed.items():
                received = nsqd.run(drain(nsqd.broker, topic, channel))
                assert bodies <= set(received), (topic, channel)
        with InProcess(path, FLAGS) as nsqd:
            for topic, channel in owed:
                assert nsqd.run(drain(nsqd.broker, topic, channel)) == [], (topic, channel)

    rounds(play)
