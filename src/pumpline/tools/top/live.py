"""The terminal of `pumpline top`: drawn and read until the end, and given back as it was.

| what happens            | what follows                                                   |
|-------------------------|----------------------------------------------------------------|
| `q`, Ctrl-C             | the end                                                        |
| SIGTERM, SIGHUP         | the same                                                       |
| Ctrl-Z                  | the terminal is the shell's, until `fg`; then it is drawn anew |

A terminal that stands still, as after Ctrl-S, gets no more than a second at the end. Then its modes
are restored, and what is left to draw is thrown away.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from rich.console import Console
from rich.live import Live

from pumpline.tools.standard_streams import forget_stdout
from pumpline.tools.top.keyboard import Keyboard
from pumpline.tools.top.rates import Measured
from pumpline.tools.top.screen import TopScreen

REDRAW_S = 0.25  # at least so often: the window may have another size
END_S_MAX = 1.0


class LiveTerminal:
    def __init__(self, screen: TopScreen) -> None:
        self._screen = screen
        self._console = Console()
        self._wants_stop = False  # Ctrl-Z

    def run(self, newest: Callable[[], Measured | None], pause: Callable[[bool], None]) -> None:
        """Draw what `newest` returns until the end; `pause` is told whether to stand still."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _end)
        signal.signal(signal.SIGALRM, _end_now)
        signal.signal(signal.SIGTSTP, self._on_stop)
        with suppress(KeyboardInterrupt):
            while not self._screen.wants_end:
                self._draw(newest, pause)
                if self._wants_stop:
                    self._stop()
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _draw(self, newest: Callable[[], Measured | None], pause: Callable[[bool], None]) -> None:
        """Until the end, or until it is to stop."""
        screen = self._screen
        with (
            Keyboard(sys.stdin.fileno()) as keyboard,
            Live(console=self._console, screen=True, auto_refresh=False) as live,
        ):
            while not screen.wants_end and not self._wants_stop:
                width, height = self._console.size
                title = time.strftime("pumpline top  %H:%M:%S")
                view = screen.render(newest(), width=width, height=height, title=title)
                live.update(view, refresh=True)
                keys = keyboard.keys(REDRAW_S)
                if keys is None:  # the terminal is gone
                    screen.wants_end = True
                    return
                for key in keys:
                    screen.press(key, page=max(height - 5, 1))
                pause(screen.is_paused)

    def _stop(self) -> None:
        """As Ctrl-Z does; returns when the shell lets it go on."""
        self._wants_stop = False
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._on_stop)

    def _on_stop(self, _: int, __: FrameType | None) -> None:
        self._wants_stop = True


def _end(_: int, __: FrameType | None) -> None:
    signal.setitimer(signal.ITIMER_REAL, END_S_MAX)
    raise KeyboardInterrupt


def _end_now(_: int, __: FrameType | None) -> None:
    forget_stdout()
    raise KeyboardInterrupt
