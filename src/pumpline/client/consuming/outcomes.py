"""What a handler raises to say what becomes of its message. Neither makes the consumer back off."""

from pumpline.client.delay import Delay, milliseconds


class Retry(Exception):
    """A handler raises it to get the message again after a delay. It causes no backoff."""

    def __init__(self, delay_s: Delay | None = None) -> None:
        """Seconds or a timedelta; by default the consumer's requeue_delay_s times the attempts."""
        if delay_s is not None:
            milliseconds(delay_s)  # raises here, in the handler, if it is not a delay
        super().__init__(delay_s)
        self.delay_s = delay_s


class Drop(Exception):
    """A handler raises it to finish a message that can never be handled. The reason is logged."""

    def __init__(self, reason: object = "") -> None:
        super().__init__(reason)
        self.reason = reason
