"""The table of nsqd's metrics: names, kinds and meanings. `prometheus` fills them.

The dashboard, the alerts and the reference of the documentation are made from this table. Families
of a pair are filled from the field of /stats that stands before them. Metrics of any daemon (build,
HTTP, event loop, process) are in `web.process_metrics`.
"""

from pumpline.web.prometheus_text import COUNTER, GAUGE, HISTOGRAM, Family

_TOPIC_LABELS = ("topic",)
_CHANNEL_LABELS = ("topic", "channel")
_HOLD_LABELS = ("topic", "hold")
_CLIENT_LABELS = ("topic", "channel", "client_id", "remote_address", "user_agent")

STARTED = Family("nsqd_start_time_seconds", GAUGE, "When nsqd started, since 1970.")
HEALTHY = Family("nsqd_healthy", GAUGE, "1 if the last write to the data directory succeeded.")
WRITE_FAILURES = Family("nsqd_write_failures", COUNTER, "Failed writes to the data directory.")
TOPICS = Family("nsqd_topics", GAUGE, "Topics.")
CONNECTIONS = Family("nsqd_connections", GAUGE, "TCP clients connected.")
PRODUCERS = Family("nsqd_producers", GAUGE, "TCP clients connected that have published.")
REFUSED = Family("nsqd_refused_connections", COUNTER, "Clients over --max-connections.")
DROPPED_CLIENTS = Family(
    "nsqd_dropped_clients",
    COUNTER,
    "Clients given up that said nothing, or took nothing.",
    ("reason",),
)
CLIENT_ERRORS = Family(
    "nsqd_client_errors", COUNTER, "Errors that ended a connection, by code.", ("code",)
)
LOOKUPD_CONNECTED = Family(
    "nsqd_lookupd_connected", GAUGE, "1 if connected to that nsqlookupd.", ("address",)
)
LOOKUPD_FAILURES = Family(
    "nsqd_lookupd_failures",
    COUNTER,
    "Connections to an nsqlookupd that ended, or were never made.",
    ("address",),
)
FSYNCS = Family("nsqd_fsync_seconds", HISTOGRAM, "Time that fsyncs of a topic's log took.")
FSYNC_FAILURES = Family("nsqd_fsync_failures", COUNTER, "Failed fsyncs.")
CHECKPOINT_AGE = Family(
    "nsqd_checkpoint_age_seconds", GAUGE, "Age of the oldest change of a channel not on disk."
)
CHECKPOINT_FAILURES = Family("nsqd_checkpoint_failures", COUNTER, "Failed writes of cursors.")
LOG_FILES = Family("nsqd_log_files_open", GAUGE, "Log files held open.")
DISK_FREE = Family("nsqd_disk_free_ratio", GAUGE, "Free part of the data directory's disk.")
DISK_FREE_BYTES = Family("nsqd_disk_free_bytes", GAUGE, "Free bytes of the data directory's disk.")
DISK_BYTES = Family("nsqd_disk_bytes", GAUGE, "Size of the data directory's disk.")
HEAP_OBJECTS = Family("nsqd_heap_objects", GAUGE, "Blocks given out by Python's allocator.")
GC_RUNS = Family("nsqd_gc_runs", COUNTER, "Garbage collections.")
GC_PAUSES = Family(
    "nsqd_gc_pause_percentile_seconds",
    GAUGE,
    "Pauses of the last 256 collections.",
    ("percentile",),
)

TOPIC_FIGURES = (
    (
        "depth",
        Family(
            "nsqd_topic_depth", GAUGE, "Messages that no channel has been given.", _TOPIC_LABELS
        ),
    ),
    (
        "backend_depth",
        Family("nsqd_topic_backend_depth", GAUGE, "Those beyond --mem-queue-size.", _TOPIC_LABELS),
    ),
    ("message_count", Family("nsqd_topic_messages", COUNTER, "Messages published.", _TOPIC_LABELS)),
    (
        "message_bytes",
        Family("nsqd_topic_message_bytes", COUNTER, "Bytes of their bodies.", _TOPIC_LABELS),
    ),
)
TOPIC_PAUSED = Family("nsqd_topic_paused", GAUGE, "1 if the topic is paused.", _TOPIC_LABELS)
LOG_BYTES = Family("nsqd_topic_log_bytes", GAUGE, "Size of the topic's log.", _TOPIC_LABELS)
LOG_SEGMENTS = Family("nsqd_topic_log_segments", GAUGE, "Files of the topic's log.", _TOPIC_LABELS)
LOG_FIRST = Family(
    "nsqd_topic_log_first_offset", GAUGE, "Oldest offset in the topic's log.", _TOPIC_LABELS
)
LOG_END = Family("nsqd_topic_log_end_offset", GAUGE, "Offset of the next message.", _TOPIC_LABELS)
TOPIC_DROPPED = Family(
    "nsqd_topic_dropped_messages",
    COUNTER,
    "Messages dropped as an ephemeral topic was full.",
    _TOPIC_LABELS,
)
TOPIC_REFUSED = Family(
    "nsqd_topic_refused_messages", COUNTER, "Refused by a full backlog.", _TOPIC_LABELS
)
TOPIC_TOKENS = Family(
    "nsqd_topic_publish_tokens", GAUGE, "Publish tokens remembered.", _TOPIC_LABELS
)
TOPIC_FORGOTTEN = Family(
    "nsqd_topic_forgotten_publish_tokens",
    COUNTER,
    "Those forgotten to make room for newer ones.",
    _TOPIC_LABELS,
)
TOPIC_REPEATS = Family(
    "nsqd_topic_publish_repeats",
    COUNTER,
    "Publishes answered only, as their token was known.",
    _TOPIC_LABELS,
)
TOPIC_OVERFLOW = Family(
    "nsqd_topic_overflow_messages", COUNTER, "Dropped from a full backlog.", _TOPIC_LABELS
)
TOPIC_LATENCY = Family(
    "nsqd_topic_e2e_processing_latency_percentile_seconds",
    GAUGE,
    "From publish to FIN, in the window.",
    ("topic", "percentile"),
)

HOLD_DEPTH = Family("nsqd_hold_depth", GAUGE, "Messages from a hold's offset on.", _HOLD_LABELS)
HOLD_BYTES = Family(
    "nsqd_hold_pinned_bytes", GAUGE, "Bytes of the log from there on, about.", _HOLD_LABELS
)
HOLD_LAG = Family(
    "nsqd_hold_lag_seconds", GAUGE, "Age of the message at a hold's offset.", _HOLD_LABELS
)
HOLD_DROPPED = Family(
    "nsqd_hold_dropped", GAUGE, "1 if the hold was dropped: it pins nothing.", _HOLD_LABELS
)
HOLDS_DROPPED = Family(
    "nsqd_topic_dropped_holds", COUNTER, "Holds over their byte limit.", _TOPIC_LABELS
)

CHANNEL_FIGURES = (
    (
        "depth",
        Family("nsqd_channel_depth", GAUGE, "Messages waiting to be delivered.", _CHANNEL_LABELS),
    ),
    (
        "backend_depth",
        Family(
            "nsqd_channel_backend_depth", GAUGE, "Those beyond --mem-queue-size.", _CHANNEL_LABELS
        ),
    ),
    (
        "in_flight_count",
        Family("nsqd_channel_in_flight", GAUGE, "Messages in flight.", _CHANNEL_LABELS),
    ),
    (
        "deferred_count",
        Family("nsqd_channel_deferred", GAUGE, "Messages deferred.", _CHANNEL_LABELS),
    ),
    (
        "message_count",
        Family("nsqd_channel_messages", COUNTER, "Messages given to the channel.", _CHANNEL_LABELS),
    ),
    (
        "requeue_count",
        Family("nsqd_channel_requeues", COUNTER, "Messages requeued.", _CHANNEL_LABELS),
    ),
    (
        "timeout_count",
        Family("nsqd_channel_timeouts", COUNTER, "Messages timed out.", _CHANNEL_LABELS),
    ),
    (
        "client_count",
        Family("nsqd_channel_consumers", GAUGE, "Consumers subscribed.", _CHANNEL_LABELS),
    ),
)
CHANNEL_LAG = Family(
    "nsqd_channel_lag_seconds",
    GAUGE,
    "Age of the oldest message that is neither finished nor deferred; 0 if there is none.",
    _CHANNEL_LABELS,
)
CHANNEL_PAUSED = Family(
    "nsqd_channel_paused", GAUGE, "1 if the channel is paused.", _CHANNEL_LABELS
)
CHANNEL_DROPPED = Family(
    "nsqd_channel_dropped_messages",
    COUNTER,
    "Messages that an ephemeral channel had no room for, or that were gone from the log.",
    _CHANNEL_LABELS,
)
CHANNEL_OVERFLOW = Family(
    "nsqd_channel_overflow_messages", COUNTER, "Dropped from a full backlog.", _CHANNEL_LABELS
)
CHANNEL_EXPIRED = Family(
    "nsqd_channel_expired_messages", COUNTER, "Passed over as too old.", _CHANNEL_LABELS
)
CHANNEL_DEAD = Family(
    "nsqd_channel_dead_letters", COUNTER, "Given up after too many attempts.", _CHANNEL_LABELS
)
CHANNEL_DELIVERED = Family(
    "nsqd_channel_delivered_messages",
    COUNTER,
    "Messages by how near the consumer was; with topology-aware consumption only.",
    ("topic", "channel", "locality"),
)
CHANNEL_LATENCY = Family(
    "nsqd_channel_e2e_processing_latency_percentile_seconds",
    GAUGE,
    "From publish to FIN, in the window.",
    ("topic", "channel", "percentile"),
)

CLIENT_FIGURES = (
    (
        "state",
        Family("nsqd_client_state", GAUGE, "0 new, 3 subscribed, 4 closing.", _CLIENT_LABELS),
    ),
    ("ready_count", Family("nsqd_client_ready", GAUGE, "RDY count.", _CLIENT_LABELS)),
    (
        "in_flight_count",
        Family("nsqd_client_in_flight", GAUGE, "Messages in flight.", _CLIENT_LABELS),
    ),
    (
        "message_count",
        Family("nsqd_client_messages", COUNTER, "Messages delivered.", _CLIENT_LABELS),
    ),
    ("finish_count", Family("nsqd_client_finishes", COUNTER, "Messages finished.", _CLIENT_LABELS)),
    (
        "requeue_count",
        Family("nsqd_client_requeues", COUNTER, "Messages requeued.", _CLIENT_LABELS),
    ),
    (
        "connect_ts",
        Family("nsqd_client_connected_seconds", GAUGE, "When it came, since 1970.", _CLIENT_LABELS),
    ),
)
CLIENT_PUBLISHED = Family(
    "nsqd_client_published_messages",
    COUNTER,
    "Messages published.",
    ("topic", "client_id", "remote_address"),
)

FIGURES = (*TOPIC_FIGURES, *CHANNEL_FIGURES, *CLIENT_FIGURES)
FAMILIES = (
    *(each for each in tuple(globals().values()) if isinstance(each, Family)),
    *(family for _, family in FIGURES),
)
