"""Listen addresses: `host:port`, or the path of a unix socket for anything else."""


def listen_address(text: str) -> tuple[str, int] | str:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        return text
    return host.removeprefix("[").removesuffix("]"), int(port)
