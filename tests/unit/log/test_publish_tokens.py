"""The files of publish tokens: what was added is read back, and damage costs what it damaged."""

import os
from pathlib import Path

import pytest

from pumpline.log.publish_tokens import FILE, OLD_FILE, Entry, PublishTokenFile, read_publish_tokens


def entries(*numbers: int) -> list[Entry]:
    return [(number, b"%016d" % number) for number in numbers]


@pytest.fixture
def file(tmp_path: Path) -> PublishTokenFile:
    made = PublishTokenFile(str(tmp_path), count_max=4)
    made.replace(0, [], sync=False)
    return made


def test_nothing_is_told_from_no_tokens(tmp_path: Path) -> None:
    assert read_publish_tokens(str(tmp_path)) is None
    PublishTokenFile(str(tmp_path), count_max=4).replace(7, [], sync=True)
    stored = read_publish_tokens(str(tmp_path))
    assert stored is not None
    assert (stored.tokens, stored.upto, stored.lost_bytes) == ([], 7, 0)


def test_what_was_added_is_read_back_in_order(tmp_path: Path, file: PublishTokenFile) -> None:
    file.append(5, entries(1, 3, 5))
    file.append(9, [])
    stored = read_publish_tokens(str(tmp_path))
    assert stored is not None
    assert (stored.tokens, stored.upto, stored.newer_count) == (entries(1, 3, 5), 9, 3)
    PublishTokenFile(str(tmp_path), count_max=4, stored=stored).append(12, entries(11))
    again = read_publish_tokens(str(tmp_path))
    assert again is not None
    assert (again.tokens, again.upto) == (entries(1, 3, 5, 11), 12)


def test_the_files_hold_what_is_wanted_at_least_and_twice_that_at_most(
    tmp_path: Path, file: PublishTokenFile
) -> None:
    for number in range(100):
        file.append(number, entries(number))
        stored = read_publish_tokens(str(tmp_path))
        assert stored is not None
        assert stored.upto == number
        assert stored.tokens[-4:] == entries(*range(max(number - 3, 0), number + 1))
        assert len(stored.tokens) <= 8
    assert sorted(os.listdir(tmp_path)) == [FILE, OLD_FILE]


def test_a_file_cut_or_damaged_at_any_byte_keeps_the_records_before(
    tmp_path: Path, file: PublishTokenFile
) -> None:
    ends = [os.path.getsize(file.path)]
    for number in (1, 2, 3):
        file.append(number, entries(number))
        ends.append(os.path.getsize(file.path))
    whole = Path(file.path).read_bytes()
    for at in range(len(whole)):
        known = sum(at >= end for end in ends[1:]) if at >= ends[0] else 0
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            Path(file.path).write_bytes(data)
            stored = read_publish_tokens(str(tmp_path))
            assert stored is not None
            assert (stored.tokens, stored.upto) == (entries(*range(1, known + 1)), known)
            assert stored.size_bytes + stored.lost_bytes == len(data)


def test_what_follows_damage_in_the_older_file_is_known_but_not_trusted_to_be_all(
    tmp_path: Path, file: PublishTokenFile
) -> None:
    for number in range(1, 7):
        file.append(number, entries(number))
    old = tmp_path / OLD_FILE
    old.write_bytes(old.read_bytes()[:-1])
    stored = read_publish_tokens(str(tmp_path))
    assert stored is not None
    assert (stored.tokens, stored.upto) == (entries(1, 2, 3, 5, 6), 3)
    assert stored.lost_bytes > 0


def test_part_of_a_record_on_a_full_disk_does_not_spoil_what_comes_after(
    tmp_path: Path, file: PublishTokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.append(1, entries(1))
    writev = os.writev

    def half(fd: int, parts: list[bytes]) -> int:
        writev(fd, [parts[0][:10]])
        raise OSError(28, "no space")

    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", half)
        with pytest.raises(OSError, match="no space"):
            file.append(2, entries(2))
    file.append(2, entries(2))
    stored = read_publish_tokens(str(tmp_path))
    assert stored is not None
    assert (stored.tokens, stored.upto, stored.lost_bytes) == (entries(1, 2), 2, 0)


def test_a_replacement_is_all_there_is(tmp_path: Path, file: PublishTokenFile) -> None:
    for number in range(1, 8):
        file.append(number, entries(number))
    file.replace(20, entries(18, 19), sync=True)
    assert os.listdir(tmp_path) == [FILE]
    stored = read_publish_tokens(str(tmp_path))
    assert stored is not None
    assert (stored.tokens, stored.upto, stored.newer_count) == (entries(18, 19), 20, 2)
