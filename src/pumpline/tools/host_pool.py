"""Which of several destinations comes next: the modes of nsq_to_nsq and nsq_to_http.

| mode           | next is                                                                       |
|----------------|-------------------------------------------------------------------------------|
| round-robin    | each in turn, the second first, as NSQ has it                                 |
| hostpool       | each in turn; one that failed is left out for 30 s, then 60 s, up to 15 min   |
| epsilon-greedy | the fastest most of the time, any at random the rest; failures as in hostpool |

If all have failed, all are tried again. Sans-IO: time and randomness are arguments.
"""

from collections.abc import Callable, Sequence

MODES = ("round-robin", "hostpool", "epsilon-greedy")
RETRY_FIRST_S = 30.0
RETRY_MAX_S = 900.0
EPSILON = 0.1  # of the choices are random
WEIGHT = 0.2  # of the newest time in the average


class PooledHost:
    __slots__ = ("address", "elapsed_s", "failed_until", "retry_s")

    def __init__(self, address: str) -> None:
        self.address = address
        self.failed_until = 0.0
        self.retry_s = 0.0
        self.elapsed_s = 0.0  # on average; 0 if it was never used


class HostPool:
    def __init__(
        self,
        addresses: Sequence[str],
        mode: str,
        *,
        now: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._hosts = [PooledHost(address) for address in addresses]
        self._mode = mode
        self._now = now
        self._random = random
        self._turn = 0 if mode == "round-robin" else -1

    def next(self) -> PooledHost:
        hosts = self._hosts
        if self._mode != "round-robin":
            hosts = [host for host in hosts if host.failed_until <= self._now()] or hosts
        if self._mode == "epsilon-greedy" and self._random() >= EPSILON:
            return min(hosts, key=lambda host: host.elapsed_s)
        self._turn += 1
        return hosts[self._turn % len(hosts)]

    def succeeded(self, host: PooledHost, elapsed_s: float) -> None:
        host.retry_s = host.failed_until = 0.0
        before_s = host.elapsed_s or elapsed_s
        host.elapsed_s = before_s + WEIGHT * (elapsed_s - before_s)

    def failed(self, host: PooledHost) -> None:
        host.retry_s = min(2 * host.retry_s, RETRY_MAX_S) if host.retry_s else RETRY_FIRST_S
        host.failed_until = self._now() + host.retry_s
