"""Which layers (`core.layers`) a client was granted by IDENTIFY: TLS, then snappy or deflate."""

import logging
import ssl

from pumpline.core.protocol.layers import Compression, Deflate, Layers, Snappy, Tls
from pumpline.nsqd.protocol.identify import ClientOptions

_LOG = logging.getLogger(__name__)


def new_layers(client: ClientOptions, context: ssl.SSLContext | None, peer: str) -> Layers:
    """The layers that a client was granted."""
    tls = None
    compression: Compression | None = None
    if client.tls_v1 and context is not None:
        _LOG.info("PROTOCOL(V2): [%s] upgrading connection to TLS", peer)
        tls = Tls(context)
    if client.snappy:
        _LOG.info("PROTOCOL(V2): [%s] upgrading connection to snappy", peer)
        compression = Snappy()
    elif client.deflate:
        level = client.deflate_level
        _LOG.info("PROTOCOL(V2): [%s] upgrading connection to deflate (level %d)", peer, level)
        compression = Deflate(level)
    return Layers(tls=tls, compression=compression)
