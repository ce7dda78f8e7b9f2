"""Deferred constraints, for a pipeline."""

from __future__ import annotations

import secrets

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import create_engine, text
from tests.spark.orders import Orders
from tests.spark.test_engines import GROUP, WAYS, run

from tidegate import open_ledger
from tidegate.errors import TidegateError
from tidegate.sandbox import Kafka, Postgres


@pytest.mark.parametrize("way", [*WAYS, "collected"])
def test_a_deferred_constraint_of_another_table_stops_the_pipeline_with_an_error_that_names_it_and_nothing_is_committed(
    way: str, kafka: Kafka, postgres: Postgres, spark: SparkSession
) -> None:
    orders = Orders.create(kafka.bootstrap, partitions=1, count=20)
    name = f"t{secrets.token_hex(5)}"
    engine = create_engine(postgres.url)
    with engine.begin() as conn:
        conn.execute(text(f"CREATE TABLE {name}_users (id TEXT PRIMARY KEY)"))
        conn.execute(text(f'CREATE TABLE {name} (id INT, "user" TEXT, total DECIMAL(12, 2))'))
        late = f"CONSTRAINT {name}_known REFERENCES {name}_users DEFERRABLE INITIALLY DEFERRED"
        conn.execute(text(f"CREATE TABLE {name}_seen (id TEXT {late})"))
        body = f"BEGIN INSERT INTO {name}_seen VALUES (NEW.user); RETURN NEW; END"
        conn.execute(text(f"CREATE FUNCTION {name}_f() RETURNS trigger LANGUAGE plpgsql AS '{body}'"))
        conn.execute(text(f"CREATE TRIGGER g BEFORE INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION {name}_f()"))
    options = {"collect": 1 << 20} if way == "collected" else WAYS[way]
    with pytest.raises(TidegateError, match=f"refused COMMIT.*{name}_known"):
        run(orders, engine, name, spark, **options)
    with engine.connect() as conn:
        assert conn.execute(text(f"SELECT count(*) FROM {name}")).scalar() == 0
    ledger = open_ledger(engine, prefix=f"{name}_")
    assert {row.next_offset for row in ledger.read(GROUP).positions.values()} == {0}
    ledger.close()
    engine.dispose()


def test_a_deferred_constraint_of_the_table_judges_each_row(
    kafka: Kafka, postgres: Postgres, spark: SparkSession
) -> None:
    orders = Orders.create(kafka.bootstrap, partitions=1, count=20)
    engine = create_engine(postgres.url)
    for way, options in WAYS.items():
        name = f"t{secrets.token_hex(5)}"
        with engine.begin() as conn:
            conn.execute(text(f"CREATE TABLE {name}_users (id TEXT PRIMARY KEY)"))
            late = f"CONSTRAINT {name}_known REFERENCES {name}_users DEFERRABLE INITIALLY DEFERRED"
            conn.execute(text(f'CREATE TABLE {name} (id INT, "user" TEXT {late}, total DECIMAL(12, 2))'))
        if way == "staged":  # where no record is known to be to blame
            with pytest.raises(TidegateError, match=f"{name}_known"):
                run(orders, engine, name, spark, **options)
        else:
            assert run(orders, engine, name, spark, **options).records == orders.count
        with engine.connect() as conn:
            assert conn.execute(text(f"SELECT count(*) FROM {name}")).scalar() == 0
    engine.dispose()
