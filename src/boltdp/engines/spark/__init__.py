"""Rows in a Spark cluster, which stay there: DataFrames alone, so that Spark Connect and managed services work.

Prepare once: each partition of the source is encoded in Python where Spark has it, into packed blocks of a few MB, one
binary value each, that Spark persists in memory and on disk. Then every scan is one job over blocks. For passes of SGD
rows get stable positions first, by file and place where the source is of files, else by partition and place, and are
shuffled to parts that are contiguous ranges of permuted positions.

Spark may run a task again, after an executor died for example, and what it then reads need not be what it read before.
Each block has a digest, by a key of the run, and whoever uses blocks compares: it is the same bits or an error, and
never a row that counts twice.

What Spark shows and logs (plans, job names, metrics, messages of exceptions) has nothing of rows: functions go there
with sums and states inside, which are pickled and not printed, and whatever goes wrong in a task or a job is stated
in our words.
"""

from boltdp.engines.spark.engine import SparkEngine, SparkSlice
from boltdp.engines.spark.packed_blocks import PreparedBlocks

__all__ = ["PreparedBlocks", "SparkEngine", "SparkSlice"]
