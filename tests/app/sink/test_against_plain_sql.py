"""The rule, through real sinks on real topics: see :mod:`tests.tables.test_against_plain_sql`."""

from __future__ import annotations

import random
import secrets

import pytest
from sqlalchemy import Engine
from tests.tables.specs import random_spec
from tests.tables.trial import Generator, Twins, database_of, open_engine, told_difference

from tidegate import App, open_ledger
from tidegate.errors import ConfigurationError
from tidegate.sandbox import Kafka
from tidegate.testing import Crash, Step, TestKit

GROUP = "etl"
RECORDS = 120
TABLES = 3


@pytest.mark.parametrize("number", range(TABLES))
def test_a_sink_that_is_killed_again_and_again_leaves_what_plain_statements_would_have_left(
    url: str, kafka: Kafka, number: int
) -> None:
    database = database_of(url)
    rng = random.Random(f"sinks {database} {number}")
    engine = open_engine(url)
    twins = _twins(rng, database, engine)
    steps = [step for _ in range(RECORDS // 12) for step in Generator(rng, twins.spec).steps(12)]
    steps = [step._replace(is_given=False, seeds=False) for step in steps]
    expected = twins.expected(steps)
    topic = f"rule-{secrets.token_hex(6)}"
    with open_ledger(url, prefix=f"{twins.ours}_") as ledger:
        app = App("nowhere.invalid:9092", ledger)
        with TestKit(app, broker=kafka.bootstrap) as kit:
            kit.topic(topic)
            for place, step in enumerate(steps):
                record = twins.record(place, step.sent)
                kit.send(topic, record.value, key=record.key)
            app.sink(topic, into=twins.spec.table(twins.ours), group=GROUP)
            for _ in range(4):
                kit._batch = rng.choice((1, 2, 3, 7, 20, 50))
                step = rng.choice((Step.ADVANCED, Step.WRITTEN, Step.COMMITTED))
                kit.run(Crash(step, rng.randrange(1, 4)), may_miss=True)
            kit._batch = rng.choice((5, 30, None))
            kit.run()
            kit.check()
            parked = {each.letter.record.offset for each in kit.dead_letters(GROUP)}
    found = twins.committed(parked)
    engine.dispose()
    assert not (difference := told_difference(twins, steps, found, expected)), difference


def _twins(rng: random.Random, database: str, engine: Engine) -> Twins:
    """Of a table that is not refused. Errors that say nothing about values stop a sink if its batch is one record; and
    ledgers leave SQLite's foreign keys off."""
    while True:
        spec = random_spec(rng, database)
        if spec.has_unnamed_errors or (database == "sqlite" and spec.refers):
            continue
        try:
            return Twins(engine, spec)
        except ConfigurationError:
            continue
