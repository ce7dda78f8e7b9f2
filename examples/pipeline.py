"""Orders into a table on Spark, all that is there now: one row for each order above a limit, in whole cents."""

from os import environ

from tidegate import Table
from tidegate.spark import Pipeline

pipeline = Pipeline(
    topics="orders",
    into=Table("large_orders", create=True, columns={"id": int, "cents": int}),
    group="large-orders",
    kafka=environ.get("KAFKA", "localhost:9092"),
    ledger=environ.get("LEDGER", "sqlite:///shop.db"),
    schema={"id": int, "total": "decimal(12,2)"},
    columns={"id": "value.id", "cents": "cast(value.total * 100 as long)"},
    where="value.total > 100",
)

if __name__ == "__main__":
    print(__doc__, "It ends by itself.", sep="\n", flush=True)
    print(pipeline.run(available_now=True).as_json())
