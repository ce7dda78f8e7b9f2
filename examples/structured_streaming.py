"""A query of Structured Streaming into a table: how many numbers of each kind there were, each batch once."""

from os import environ

from pyspark.sql import SparkSession

from tidegate import Table
from tidegate.spark import ExactlyOnce

table = Table("kinds", key="kind", mode="upsert", create=True, columns={"kind": int, "numbers": int})
writer = ExactlyOnce(table, ledger=environ.get("LEDGER", "sqlite:///shop.db"), name="kinds")

if __name__ == "__main__":
    print(__doc__, "It ends by itself after ten seconds; start it again.", sep="\n", flush=True)
    spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 90).load()
    kinds = numbers.groupBy((numbers.value % 3).alias("kind")).count().withColumnRenamed("count", "numbers")
    query = kinds.writeStream.outputMode("update").option("checkpointLocation", environ.get("CHECKPOINT", "kinds"))
    running = query.trigger(processingTime="1 second").foreachBatch(writer).start()
    running.awaitTermination(10)
    running.stop()
