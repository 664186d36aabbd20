"""Settings of one topic: what differs, for it, from how NSQ treats all topics.

| name              | form                      | meaning                                          |
|-------------------|---------------------------|--------------------------------------------------|
| retention_time    | duration                  | instead of --retention-time                      |
| retention_bytes   | bytes                     | instead of --retention-bytes                     |
| message_ttl       | duration                  | older messages are passed over                   |
| max_attempts      | 1 to 65535                | deliveries; after them it is a dead letter       |
| dead_letter_topic | topic                     | where those go; `<topic>.dlq` if absent          |
| dead_letter_form  | `json` or `body`          | in which form; `json` if absent                  |
| max_depth         | messages                  | bound of every channel's backlog                 |
| max_bytes         | bytes                     | the same                                         |
| when_full         | `reject` or `drop-oldest` | what happens at a bound; `reject` if absent      |

Durations are written as Go writes them (`90s`, `1h30m`). A setting that is absent means what NSQ
does. Pure: knows the settings, not what becomes of them.
"""

import re
from collections.abc import Mapping

import msgspec

from pumpline.core.text.durations import format_duration, parse_duration
from pumpline.core.text.names import (
    dead_letter_topic_of,
    is_dead_letter_topic,
    is_ephemeral,
    is_valid_name,
)

FORM_JSON = "json"
FORM_BODY = "body"
REJECT = "reject"
DROP_OLDEST = "drop-oldest"

_ATTEMPTS_MAX = 0xFFFF  # what a message frame can say
_NUMBER_MAX = (1 << 63) - 1
_TTL_NS_MIN = 1_000_000  # a message that is too old at once makes no sense
_CHOICES = {"dead_letter_form": (FORM_JSON, FORM_BODY), "when_full": (REJECT, DROP_OLDEST)}
_DURATIONS = {"retention_time": 0, "message_ttl": _TTL_NS_MIN}  # the least of each
_NUMBERS = {
    "retention_bytes": (0, _NUMBER_MAX),
    "max_attempts": (1, _ATTEMPTS_MAX),
    "max_depth": (1, _NUMBER_MAX),
    "max_bytes": (1, _NUMBER_MAX),
}


class SettingsError(ValueError):
    """A setting cannot be; the text says which, and what it may be."""


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """None: absent."""

    retention_time_ns: int | None = None
    retention_bytes: int | None = None
    message_ttl_ns: int | None = None
    max_attempts: int | None = None
    dead_letter_topic: str | None = None
    dead_letter_form: str | None = None
    max_depth: int | None = None
    max_bytes: int | None = None
    when_full: str | None = None

    def shown(self) -> dict[str, str | int | None]:
        """As HTTP clients see and write them."""
        values: dict[str, str | int | None] = msgspec.structs.asdict(self)
        return {
            name.removesuffix("_ns"): _shown(value) if name.endswith("_ns") else value
            for name, value in values.items()
        }

    def changed(self, changes: Mapping[str, object]) -> "TopicSettings":
        """With `changes`, as a client wrote them; None makes a setting absent. SettingsError."""
        names = {name.removesuffix("_ns"): name for name in self.__struct_fields__}
        parsed: dict[str, object] = {}
        for name, value in changes.items():
            if name not in names:
                raise SettingsError(f"there is no setting {name!r:.80}")
            parsed[names[name]] = None if value is None else _parsed(name, value)
        return msgspec.structs.replace(self, **parsed)

    def dead_letters_of(self, topic: str) -> str:
        """Where the dead letters of `topic` go."""
        return self.dead_letter_topic or dead_letter_topic_of(topic)

    def check(self, topic: str) -> None:
        """SettingsError unless all settings together make sense for `topic`."""
        if self.max_attempts is None:
            for name in ("dead_letter_topic", "dead_letter_form"):
                if getattr(self, name) is not None:
                    raise SettingsError(f"{name} needs max_attempts")
        if self.when_full is not None and self.max_depth is None and self.max_bytes is None:
            raise SettingsError("when_full needs max_depth or max_bytes")
        if self.max_attempts is None:
            return
        if is_dead_letter_topic(topic):
            raise SettingsError("max_attempts cannot be: dead letters have no dead letters")
        target = self.dead_letters_of(topic)
        if target == topic:
            raise SettingsError("dead_letter_topic must be another topic")
        if not is_valid_name(target):
            raise SettingsError(f"{target} is too long for a topic: say dead_letter_topic")


NO_SETTINGS = TopicSettings()


def _shown(duration_ns: str | int | None) -> str | None:
    return format_duration(duration_ns) if isinstance(duration_ns, int) else None


def _parsed(name: str, value: object) -> object:
    if name in _DURATIONS:
        return _duration_ns(name, value, _DURATIONS[name])
    if name in _NUMBERS:
        return _number(name, value, *_NUMBERS[name])
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise SettingsError(f"{name} must be {' or '.join(_CHOICES[name])}")
        return value
    if not isinstance(value, str) or not is_valid_name(value) or is_ephemeral(value):
        raise SettingsError(f"{name} must be the name of a topic that is not ephemeral")
    return value


def _duration_ns(name: str, value: object, least_ns: int) -> int:
    wanted = f"{name} must be a duration of {format_duration(least_ns)} or more, such as 90s or 24h"
    if not isinstance(value, str) or not re.fullmatch(r"[0-9.a-zµμ]{1,40}", value):
        raise SettingsError(wanted)
    try:
        duration_ns = parse_duration(value)
    except ValueError:
        raise SettingsError(wanted) from None
    if not least_ns <= duration_ns <= _NUMBER_MAX:
        raise SettingsError(wanted)
    return duration_ns


def _number(name: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise SettingsError(f"{name} must be a whole number from {least} to {most}")
    return value
