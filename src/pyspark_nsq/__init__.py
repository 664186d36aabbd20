"""NSQ topics as Spark tables: `spark.read.format("nsq")`. Nothing has to be registered.

Spark imports every installed module named `pyspark_*` and registers its `DefaultSource`.
"""

from pyspark_nsq.progress import lag, least_lag
from pyspark_nsq.source import DefaultSource
from pyspark_nsq.worker_exit import exit_quietly

__all__ = ["DefaultSource", "lag", "least_lag"]

exit_quietly()  # here, because every worker that runs any code of ours imports this
