"""Training inside a Spark cluster, with DataFrames only, so that Spark Connect and managed services work.

The executors encode each partition of the source once into packed blocks of a few MB, which Spark persists in memory
and on disk. Every scan is then one job over blocks. For SGD, rows first get stable positions, by file and offset or by
partition and offset, and are shuffled to parts that are contiguous ranges of permuted positions.

Spark may run a task again, for example after an executor died, and then read different rows. Each block has a digest
keyed by the run, which every use verifies: a changed block is an error, and no row is counted twice.

Plans, job names, metrics and exception messages in Spark's logs contain nothing about rows: sums and states are
pickled inside functions and not printed, and errors of tasks and jobs are replaced by our own messages.
"""

from boltdp.engines.spark.engine import SparkEngine, SparkSlice
from boltdp.engines.spark.prepared_rows import PreparedBlocks

__all__ = ["PreparedBlocks", "SparkEngine", "SparkSlice"]
