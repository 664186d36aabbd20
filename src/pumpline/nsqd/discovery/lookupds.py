"""Discovery: nsqd tells the nsqlookupds what it has, and asks them for channels it should have.

Each nsqlookupd has a task that keeps a connection to it: connect, IDENTIFY, register everything,
then changes as they come and a PING now and then. When anything goes wrong the connection is
dropped and made anew after a while, and everything registered again; nothing else depends on it.

A new topic stands still (`Topic.await_channels`) until the nsqlookupds were asked for the channels
that it has elsewhere, so that its first message finds them there. Publishers do not wait for that,
and the topic does not wait for longer than `--http-client-request-timeout`. If nsqd ends meanwhile,
it asks again when it is back.

`discovery.connection` moves bytes, `discovery.session` knows what they mean.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Collection

import msgspec

from pumpline.core.text.addresses import PORT_MAX, split_address
from pumpline.core.text.durations import NS_PER_S
from pumpline.core.text.names import is_ephemeral, is_valid_name
from pumpline.nsqd.discovery.connection import Link
from pumpline.nsqd.discovery.session import About, Identity, Session
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.topic import NameTaken, Topic
from pumpline.nsqd.queue.topic_state import CLOSED
from pumpline.nsqd.queue.topics import Topics
from pumpline.web.http_client import Asker, NoAnswer, http_url
from pumpline.web.yielding import Pace

DIAL_S = 1.0
GOODBYE_S = 1.0  # for all of them to take back what is registered, when nsqd ends
BACKOFF_MIN_S = 0.25  # before connecting again; it doubles, up to the interval between PINGs
QUERIES_MAX = 16  # for channels, at a time
ANSWER_BYTES_MAX = 1 << 20  # of such a query
CHANNELS_MAX = 1000  # that a topic is given on the word of others
WAIT_DEFAULT_S = 5.0  # for them, where requests have no limit

_LOG = logging.getLogger(__name__)


class Channels(msgspec.Struct):
    """The answer of /channels."""

    channels: list[str] | None = None


class Lookups:
    def __init__(self, options: Options, topics: Topics) -> None:
        self._options = options
        self._topics = topics
        self._identity: Identity | None = None
        self._lookupds: dict[str, Lookupd] = {}
        self._discoveries: dict[Topic, asyncio.Task[None]] = {}
        self._asker = Asker(
            connect_timeout_ns=options.http_client_connect_timeout_ns,
            timeout_ns=options.http_client_request_timeout_ns,
            requests_max=QUERIES_MAX,
            answer_bytes_max=ANSWER_BYTES_MAX,
            follows=False,
        )
        self._closed = False
        self.update()

    @property
    def lookupds(self) -> "Collection[Lookupd]":
        return self._lookupds.values()

    def start(self, identity: Identity) -> None:
        """Connect, now that it is known what to say; topics made before wait for this."""
        self._identity = identity
        for lookupd in self._lookupds.values():
            lookupd.start(identity)
        for topic in list(self._topics.values()):
            if topic.awaits_channels:
                self.discover(topic)

    def update(self) -> None:
        """The addresses in the options may be others than before."""
        if self._closed:
            return
        wanted = dict.fromkeys(self._options.lookupd_tcp_address)
        for address in self._lookupds.keys() - wanted.keys():
            _LOG.info("LOOKUP(%s): removing peer", address)
            self._lookupds.pop(address).leave()
        for address in wanted.keys() - self._lookupds.keys():
            _LOG.info("LOOKUP(%s): adding peer", address)
            lookupd = self._lookupds[address] = Lookupd(address, self._options, self._topics)
            if self._identity is not None:
                lookupd.start(self._identity)

    def registration_changed(self, topic: str, channel: str | None) -> None:
        """The topic, or that channel of it, came or went."""
        for lookupd in self._lookupds.values():
            lookupd.changed(topic)

    async def close(self) -> None:
        self._closed = True
        for task in self._discoveries.values():
            task.cancel()
        lookupds = list(self._lookupds.values())
        if lookupds:
            _LOG.info("LOOKUP: closing")
        # Nobody is sent here any more before the clients are.
        await _all_within(GOODBYE_S, [lookupd.retire() for lookupd in lookupds])
        await asyncio.gather(*(lookupd.stop() for lookupd in lookupds))
        self._lookupds.clear()
        await self._asker.close()

    # -- channels of a new topic --------------------------------------------------------------

    def discover(self, topic: Topic) -> None:
        """Let the topic stand still until it has the channels it has elsewhere."""
        if topic in self._discoveries:
            return
        if not self._lookupds:
            if topic.awaits_channels:
                topic.channels_known()
            return
        topic.await_channels()
        task = asyncio.get_running_loop().create_task(self._discover(topic))
        self._discoveries[topic] = task
        task.add_done_callback(lambda _: self._discoveries.pop(topic))

    async def discovered(self, topic: Topic) -> None:
        """Wait until the topic moves on."""
        if topic in self._discoveries:
            await asyncio.wait({self._discoveries[topic]})

    async def _discover(self, topic: Topic) -> None:
        try:
            answers = await asyncio.gather(
                *(self._ask(lookupd, topic.name) for lookupd in self._lookupds.values())
            )
            if all(answer is None for answer in answers):
                _LOG.error(
                    "no available nsqlookupd to query for channels to pre-create for topic %s",
                    topic.name,
                )
            names = {name for answer in answers for name in answer or () if _is_wanted(name)}
            await self._create(topic, sorted(names))
        except Exception:
            _LOG.exception("TOPIC(%s): failed to pre-create channels", topic.name)
        topic.channels_known()

    async def _create(self, topic: Topic, names: list[str]) -> None:
        if len(names) > CHANNELS_MAX:
            _LOG.warning(
                "TOPIC(%s): %d channels known to nsqlookupd, the first %d are made",
                topic.name,
                len(names),
                CHANNELS_MAX,
            )
        pace = Pace()
        for name in names[:CHANNELS_MAX]:
            if topic.state is CLOSED:
                return
            try:
                topic.ensure_channel(name)
            except NameTaken:
                _LOG.warning("TOPIC(%s): channel %s is a hold here", topic.name, name)
            except OSError as error:
                reason = topic.disk.health.failed(error, f"channel {name}")
                _LOG.error("TOPIC(%s): failed to make channel %s - %s", topic.name, name, reason)
            await pace.breathe()

    async def _ask(self, lookupd: "Lookupd", topic: str) -> list[str] | None:
        """The channels that one nsqlookupd knows of; None if it is not there."""
        limit_s = self._options.http_client_request_timeout_ns / NS_PER_S or WAIT_DEFAULT_S
        await self._asker.ready()
        try:
            async with asyncio.timeout(limit_s):
                about = await lookupd.identified()
                return None if about is None else await self._query(about, topic)
        except TimeoutError:
            cause = "timed out"
        except msgspec.MsgspecError:
            cause = "the answer is not understood"
        except (NoAnswer, OSError, ValueError) as error:
            cause = str(error) or type(error).__name__
        _LOG.warning(
            "failed to query nsqlookupd for channels to pre-create for topic %s - %s: %s",
            topic,
            lookupd.address,
            cause,
        )
        return []

    async def _query(self, about: About, topic: str) -> list[str]:
        if not about.broadcast_address or not 0 < about.http_port <= PORT_MAX:
            raise ValueError("it did not tell its HTTP address")
        url = http_url(about.broadcast_address, about.http_port, "/channels", topic=topic)
        _LOG.info("CI: querying nsqlookupd %s", url)
        status, answer = await self._asker.ask(url)
        if status != 200:
            raise ValueError(f"got response {status}")
        return msgspec.json.decode(answer, type=Channels).channels or []


class Lookupd:
    """One nsqlookupd, connected as long as it is wanted."""

    def __init__(self, address: str, options: Options, topics: Topics) -> None:
        self.address = address
        self.failure_count = 0
        self._options = options
        self._topics = topics
        self._ping_s = options.lookupd_ping_interval_ns / NS_PER_S
        self._tried = asyncio.Event()  # whether we know if it is there
        self._link: Link | None = None
        self._is_retiring = False
        self._task: asyncio.Task[None] | None = None

    @property
    def about(self) -> About | None:
        """What it says of itself, if it is connected."""
        return self._link.about if self._link is not None else None

    def start(self, identity: Identity) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep(identity))

    def leave(self) -> None:
        """It is not wanted any more."""
        if self._task is not None:
            self._task.cancel()
        self._tried.set()

    async def stop(self) -> None:
        self.leave()
        if self._task is not None:
            await asyncio.wait({self._task})

    def changed(self, topic: str) -> None:
        if self._link is not None:
            self._link.changed(topic)

    async def identified(self) -> About | None:
        """What it says of itself; None if it is not there. Waits for a connection being made."""
        await self._tried.wait()
        return self.about

    async def retire(self) -> None:
        """Take back all registrations; returns when that is confirmed. Ends the connection, and no
        other is made."""
        self._is_retiring = True
        if self._link is not None:
            await self._link.retire()

    async def _keep(self, identity: Identity) -> None:
        loop = asyncio.get_running_loop()
        pause_s = BACKOFF_MIN_S
        while True:
            began_s = loop.time()
            self._tried.clear()
            try:
                cause = await self._connection(identity)
            except Exception:
                _LOG.exception("LOOKUPD(%s): failed", self.address)
                cause = "an unexpected error"
            finally:
                self._link = None
                self._tried.set()
            if self._is_retiring:
                return
            self.failure_count += 1
            _LOG.error("LOOKUPD(%s): %s", self.address, cause)
            if loop.time() - began_s > self._ping_s:
                pause_s = BACKOFF_MIN_S
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, max(self._ping_s, BACKOFF_MIN_S))

    async def _connection(self, identity: Identity) -> str:
        """From the beginning to the end of a connection; returns why it ended."""
        _LOG.info("LOOKUP connecting to %s", self.address)
        link = self._link = self._new_link(identity)
        try:
            async with asyncio.timeout(DIAL_S):
                host, port = split_address(self.address)
                await asyncio.get_running_loop().create_connection(lambda: link, host, port)
            return await link.ended
        except TimeoutError:
            return f"no connection within {DIAL_S:g} s"
        except (OSError, ValueError) as error:
            return str(error)
        finally:
            link.close()

    def _new_link(self, identity: Identity) -> Link:
        def channels_of(name: str) -> Collection[str] | None:
            topic = self._topics.get(name)
            return None if topic is None else topic.channels

        return Link(
            self.address,
            identity,
            lambda: Session(self._topics, channels_of, reply_bytes_max=self._options.max_body_size),
            ping_s=self._ping_s,
            identified=self._tried.set,
        )


def _is_wanted(name: str) -> bool:
    return is_valid_name(name) and not is_ephemeral(name)


async def _all_within(seconds: float, waits: list[Awaitable[None]]) -> None:
    if waits:
        _, late = await asyncio.wait(
            [asyncio.ensure_future(each) for each in waits], timeout=seconds
        )
        for each in late:
            each.cancel()
