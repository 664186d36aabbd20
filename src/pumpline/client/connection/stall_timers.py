"""Two timers of a connection, for an nsqd that is silent and for one that takes no output.

nsqd sends heartbeats, so silence of `read_timeout_s` means that it is gone. Output that does not
shrink for `write_timeout_s` means the same; an nsqd that is merely slow is left alone. Knows the
event loop's clock; must not know sockets.
"""

import asyncio
from collections.abc import Callable

from pumpline.client.settings import Settings


class StallTimers:
    def __init__(self, settings: Settings, on_stall: Callable[[str], None]) -> None:
        """`on_stall` is called with a text that says what nsqd did not do."""
        self.was_heard = True  # since the last look; set with every chunk that arrives
        self.is_reading = True  # we read from the socket, so nsqd can be heard
        self._settings = settings
        self._on_stall = on_stall
        self._loop = asyncio.get_running_loop()
        self._input: asyncio.TimerHandle | None = None
        self._output: asyncio.TimerHandle | None = None

    def watch_input(self) -> None:
        if self._settings.heartbeat_interval_s < 0:
            return  # without heartbeats nsqd may have nothing to say for hours
        timeout_s = self._settings.read_timeout_s

        def look(silent_looks: int) -> None:
            silent_looks = 0 if self.was_heard or not self.is_reading else silent_looks + 1
            self.was_heard = False
            if silent_looks == 2:
                self._on_stall(f"nsqd said nothing for {timeout_s:g} s")
            else:
                self._input = self._loop.call_later(timeout_s / 2, look, silent_looks)

        self._input = self._loop.call_later(timeout_s / 2, look, 0)

    def watch_output(self, unsent_bytes: Callable[[], int]) -> None:
        """Until `output_flows`. `unsent_bytes` is what nsqd has not taken yet."""
        timeout_s = self._settings.write_timeout_s

        def look(bytes_before: int) -> None:
            bytes_now = unsent_bytes()
            if bytes_now < bytes_before:
                self._output = self._loop.call_later(timeout_s, look, bytes_now)
            else:
                self._on_stall(f"nsqd took nothing for {timeout_s:g} s")

        self._output = self._loop.call_later(timeout_s, look, unsent_bytes())

    def output_flows(self) -> None:
        if self._output is not None:
            self._output.cancel()
            self._output = None

    def cancel(self) -> None:
        self.output_flows()
        if self._input is not None:
            self._input.cancel()
