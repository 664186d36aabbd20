"""The files of one topic, one after another: which is open, when it is full, where it goes.

| a new file begins when                | seen                     |
|---------------------------------------|--------------------------|
| the time gives another name           | before a batch, at a tick|
| it is open for --rotate-interval      | likewise                 |
| it has more than --rotate-size bytes  | before a message, a tick |

Blocking; the caller writes, syncs and rotates in the right order. Knows no messages.
"""

import logging
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import count
from pathlib import Path

from pumpline.core.text.durations import NS_PER_S, format_duration
from pumpline.tools.nsq_to_file.encoding import Encoding
from pumpline.tools.nsq_to_file.filenames import Filenames, with_revision
from pumpline.tools.nsq_to_file.leftovers import delete_hidden, mend_leftovers
from pumpline.tools.nsq_to_file.moving import move
from pumpline.tools.nsq_to_file.options import ToFileOptions
from pumpline.tools.nsq_to_file.output_file import OutputFile, unmark

log = logging.getLogger("pumpline.tools.nsq_to_file")


class TopicFiles:
    def __init__(
        self,
        topic: str,
        options: ToFileOptions,
        names: Filenames,
        encoding: Encoding,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self.file: OutputFile | None = None
        self.encoding = encoding
        self._label = f"[{topic}/{options.channel}]"
        self._names = names
        self._now = now
        self._work_dir = Path(options.working_dir)
        self._output_dir = Path(options.output_dir)
        self._moves = options.working_dir != options.output_dir
        self._is_exclusive = options.is_compressed or options.rotate_interval_ns > 0
        self._rotate_size = options.rotate_size
        self._rotate_interval_ns = options.rotate_interval_ns
        self._revision = 0
        self._name = ""  # of the last file, with <REV> in it
        self._opened_at = now()
        self._raw_bytes = 0  # of the open file, before compression

    def mend(self) -> None:
        """Bring files that a kill has left into order."""
        depth = self._names.at(self._now()).count("/")
        for directory in {self._work_dir, self._output_dir}:
            delete_hidden(directory, self._names, depth=depth)
        for path in mend_leftovers(
            self._work_dir, self._names, self.encoding, depth=depth, is_work_dir=self._moves
        ):
            if self._moves:
                unmark(self._move(path, str(path.relative_to(self._work_dir)), 0))

    def count_raw(self, count_bytes: int) -> None:
        """So many bytes of records go into the open file."""
        self._raw_bytes += count_bytes

    def is_full(self) -> bool:
        return bool(self._rotate_size and self._raw_bytes > self._rotate_size)

    def must_rotate(self) -> bool:
        """Whether the open file is not to be written any more."""
        assert self.file is not None
        if self._names.at(self._now()) != self._name:
            log.info("%s new filename, rotating...", self._label)
            return True
        open_for_ns = int((self._now() - self._opened_at).total_seconds() * NS_PER_S)
        if self._rotate_interval_ns and open_for_ns > self._rotate_interval_ns:
            text = "%s %s since last open, rotating..."
            log.info(text, self._label, format_duration(open_for_ns))
            return True
        if self.is_full():
            text = "%s %s currently %d bytes (> %d), rotating..."
            log.info(text, self._label, self.file.path, self._raw_bytes, self._rotate_size)
            return True
        return False

    def open(self) -> OutputFile:
        """The next file; the one before must be closed."""
        name = self._names.at(self._now())
        self._revision = 0 if name != self._name else self._revision + 1
        self._name = name
        self._opened_at = self._now()
        while True:
            relative = with_revision(name, self._revision)
            file = self._try(relative)
            if file is not None:
                break
            self._revision += 1
        log.info("%s opening %s", self._label, file.path)
        self._raw_bytes = file.size_bytes
        self.file = file
        return file

    def _try(self, relative: str) -> OutputFile | None:
        """This file, unless its name is taken or it is full."""
        if self._moves and os.path.exists(self._output_dir / relative):
            return None
        try:
            file = OutputFile(self._work_dir / relative, is_exclusive=self._is_exclusive)
        except FileExistsError:
            log.warning("%s file already exists: %s", self._label, self._work_dir / relative)
            return None
        if self._rotate_size and file.size_bytes > self._rotate_size:
            text = "%s %s currently %d bytes (> %d), rotating..."
            log.info(text, self._label, file.path, file.size_bytes, self._rotate_size)
            file.close()
            return None
        return file

    def close(self) -> None:
        """The open file is complete; everything in it is synced."""
        file, self.file = self.file, None
        if file is None:
            return
        if not file.size_bytes and self.encoding.is_compressed:
            file.write(self.encoding.encode([]))
            file.sync()
        if self._moves:  # before its mark goes: without one, the next start would leave it there
            self._move(file.path, self._name, self._revision)
        file.close()

    def abandon(self) -> None:
        """After a failure: leave the file with what was synced."""
        file, self.file = self.file, None
        if file is not None:
            file.abandon()

    def _move(self, source: Path, name: str, revision: int) -> Path:
        def destinations() -> Iterator[Path]:
            yield self._output_dir / source.relative_to(self._work_dir)
            for number in count(revision + 1):
                free = with_revision(name, number)
                if free == name:  # the name of a leftover, with its revision
                    free = f"{name}.{number:06d}"
                yield self._output_dir / free

        moved = move(source, destinations())
        log.info("%s moving finished file %s to %s", self._label, source, moved)
        return moved
