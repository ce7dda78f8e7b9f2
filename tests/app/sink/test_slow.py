"""A sink into a table that takes its time."""

from __future__ import annotations

from sqlalchemy import create_engine, text
from tests.ledger.stores import fresh_name

from tidegate import App, Limits, open_ledger
from tidegate.observe.events import Committed
from tidegate.sandbox import Postgres
from tidegate.testing import TestKit


def test_after_a_slow_transaction_the_next_ones_take_what_fits_into_half_of_hold(postgres: Postgres) -> None:
    name = fresh_name()
    engine = create_engine(postgres.url)
    with engine.begin() as conn:
        conn.execute(text(f"CREATE TABLE {name} (id integer)"))
        conn.execute(
            text(
                f"CREATE FUNCTION {name}_slow() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN PERFORM pg_sleep(0.004); RETURN NEW; END $$"
            )
        )
        conn.execute(text(f"CREATE TRIGGER slow BEFORE INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION {name}_slow()"))
    with open_ledger(postgres.url, prefix=f"{name}_", limits=Limits(hold=0.4, lock_wait=5)) as ledger:
        app = App("nowhere.invalid:9092", ledger)
        app.sink("orders", into=name, group="etl")
        with TestKit(app, batch=100) as kit:
            for number in range(250):
                kit.send("orders", {"id": number})
            events = kit.run().events
            kit.check()
    with engine.connect() as conn:
        assert conn.execute(text(f"SELECT count(*), count(DISTINCT id) FROM {name}")).one() == (250, 250)
    engine.dispose()
    sizes = [span.records for event in events if isinstance(event, Committed) for span in event.spans]
    assert sizes[0] == 100, "it is written in bulk, and was not idle"
    assert max(sizes[1:]) <= 50
