"""How large a message nsqd takes: read from its refusals, and said in its words.

nsqd closes the connection when a message is over its --max-msg-size, so that one message too many
costs all others a reconnect. It names the limit in its error, and some say it in IDENTIFY. Knows
those texts; must not know connections.
"""

import re

from pumpline.client.errors import ServerError
from pumpline.core.protocol.errors import E_BAD_MESSAGE

_TOO_BIG = re.compile(r"message too big \d+ > (\d{1,18})")


def limit_told(error: Exception) -> int:
    """The limit that a refusal names; 0 if it names none."""
    if not isinstance(error, ServerError) or error.code != E_BAD_MESSAGE:
        return 0
    found = _TOO_BIG.search(error.text)
    return int(found[1]) if found else 0


def too_big(size_bytes: int, bytes_max: int) -> ServerError:
    """What nsqd would say of it."""
    return ServerError(E_BAD_MESSAGE, f"message too big {size_bytes} > {bytes_max}")
