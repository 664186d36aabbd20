"""Ready-made middleware, for producers and for consumers: logging, metrics and tracing.

    from pumpline.client.middleware import logged, measured, traced

    Producer("127.0.0.1:4150", middleware=[logged(), measured()])
    Consumer("orders", "billing", nsqd="127.0.0.1:4150", middleware=[logged(), traced()])

They use the hook of `pumpline.client.around`, as any middleware of a user does.
"""

from pumpline.client.middleware.logged import logged
from pumpline.client.middleware.measured import measured
from pumpline.client.middleware.traced import traced

__all__ = ["logged", "measured", "traced"]
