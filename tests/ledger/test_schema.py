"""The ledger's tables: made on first use, brought up to date, refused when newer, used with few rights."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect, text
from tests.processes import CONTEXT

from tidegate import Record, Span, TopicPartition, open_ledger
from tidegate.cli.doctor import examine_ledger
from tidegate.errors import LedgerError, SchemaError
from tidegate.ledger import FailedRecord
from tidegate.ledger.sql import schema
from tidegate.ledger.sql.ledger import SqlLedger
from tidegate.sandbox import Postgres

ORDERS = TopicPartition("orders", 0)


@pytest.fixture(params=["sqlite", "mariadb", "mysql", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return str(request.getfixturevalue(request.param).url)


@pytest.fixture
def prefix() -> str:
    return f"t{secrets.token_hex(4)}_"


@pytest.fixture
def ledger(url: str, prefix: str) -> Iterator[SqlLedger]:
    with open_ledger(url, prefix=prefix) as opened:
        assert isinstance(opened, SqlLedger)
        yield opened


def run(ledger: SqlLedger, sql: str) -> Any:
    with ledger.engine.begin() as conn:
        result = conn.execute(text(sql))
        return result.fetchall() if result.returns_rows else None


def test_tables_are_created_on_first_use(ledger: SqlLedger, prefix: str) -> None:
    assert ledger.read("billing").positions == {}
    tables = set(inspect(ledger.engine).get_table_names())
    assert {prefix + name for name in ("positions", "groups", "journal", "dead_letters", "schema")} <= tables
    assert run(ledger, f"SELECT max(version) FROM {prefix}schema") == [(len(schema.STEPS),)]


def test_create_may_be_called_again_and_keeps_everything(ledger: SqlLedger) -> None:
    ledger.claim("billing", [ORDERS], start_at=7)
    ledger.create()
    assert ledger.read("billing").positions[ORDERS].next_offset == 7


def test_an_older_schema_is_refused_until_create_has_upgraded_it(
    url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as past, open_ledger(url, prefix=prefix) as old:
        # Without the last one, the claims of today could not be made.
        past.setattr("tidegate.ledger.sql.sessions.STEPS", (lambda new: [*schema.STEPS[0](new), new.changes],))
        claims = old.claim("billing", [ORDERS], start_at=7)
        old.transact(claims, [Span(ORDERS, 7, 9, 2)])
    with open_ledger(url, prefix=prefix) as new:
        with pytest.raises(SchemaError, match=r"has schema version 1, this Tidegate needs 4; run ledger\.create\(\)"):
            new.read("billing")
        new.create()
        letter = FailedRecord(Record("orders", 0, 9), "no")
        new.transact(new.claim("billing", [ORDERS]), [Span(ORDERS, 9, 10, 1)], lambda tx: tx.park(letter))
        assert new.read("billing").positions[ORDERS].next_offset == 10
        assert len(new.dead_letters("billing")) == 1
        assert new.verify("billing").ok


def test_a_newer_schema_is_refused(ledger: SqlLedger, url: str, prefix: str) -> None:
    ledger.create()
    run(ledger, f"INSERT INTO {prefix}schema (version) VALUES (99)")
    with open_ledger(url, prefix=prefix) as late:
        for use in (late.create, lambda: late.claim("billing", [ORDERS])):
            with pytest.raises(SchemaError, match="has schema version 99, this Tidegate knows only up to 4; upgrade"):
                use()


def create_and_claim(url: str, prefix: str, number: int) -> None:
    with open_ledger(url, prefix=prefix) as ledger:
        ledger.claim(f"group-{number}", [ORDERS])


def test_eight_processes_may_use_a_new_ledger_at_once(url: str, prefix: str) -> None:
    processes = [CONTEXT.Process(target=create_and_claim, args=(url, prefix, number)) for number in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 8
    with open_ledger(url, prefix=prefix) as ledger:
        assert len(ledger.read_all()) == 8


def test_a_login_that_may_not_create_tables_is_told_who_has_to(postgres: Postgres, prefix: str) -> None:
    admin = create_engine(postgres.url)
    user = f"user_{prefix}"
    with admin.begin() as conn:
        conn.execute(text(f"CREATE ROLE {user} LOGIN PASSWORD '{user}'"))
    with open_ledger(postgres.url_for(user, user), prefix=prefix) as ledger, pytest.raises(LedgerError, match="CREATE"):
        ledger.claim("billing", [ORDERS])
    admin.dispose()


@pytest.mark.parametrize("server", ["mariadb", "mysql"])
def test_a_ledger_that_is_open_looks_at_its_engines_on_each_new_connection(
    server: str, request: pytest.FixtureRequest, prefix: str
) -> None:
    with open_ledger(request.getfixturevalue(server).url, prefix=prefix) as ledger:
        assert isinstance(ledger, SqlLedger)
        ledger.claim("billing", [ORDERS], start_at=7)
        run(ledger, f"ALTER TABLE {prefix}groups ENGINE=MEMORY")
        ledger.engine.dispose()
        with pytest.raises(SchemaError, match=f"ALTER TABLE `{prefix}groups` ENGINE=InnoDB"):
            ledger.read("billing")
        run(ledger, f"ALTER TABLE {prefix}groups ENGINE=InnoDB")
        assert ledger.read("billing").positions[ORDERS].next_offset == 7


@pytest.mark.parametrize("server", ["mariadb", "mysql"])
def test_a_ledger_whose_tables_have_no_transactions_is_refused(
    server: str, request: pytest.FixtureRequest, prefix: str
) -> None:
    url = request.getfixturevalue(server).url
    with open_ledger(url, prefix=prefix) as first:
        assert isinstance(first, SqlLedger)
        first.claim("billing", [ORDERS], start_at=7)
        run(first, f"ALTER TABLE {prefix}groups ENGINE=MEMORY")
    with open_ledger(url, prefix=prefix) as second:
        assert isinstance(second, SqlLedger)
        with pytest.raises(SchemaError, match=f"ALTER TABLE `{prefix}groups` ENGINE=InnoDB"):
            second.read("billing")
        (tables,) = [finding for finding in examine_ledger(second) if finding.check == "tables"]
        assert tables.verdict == "fault"
        assert f"{prefix}groups has the engine MEMORY" in tables.said
        run(second, f"ALTER TABLE {prefix}groups ENGINE=InnoDB")
        assert second.read("billing").positions[ORDERS].next_offset == 7


def test_an_entry_of_a_kind_that_is_not_known_is_an_error_of_the_ledger(ledger: SqlLedger, prefix: str) -> None:
    ledger.transact(ledger.claim("billing", [ORDERS]), [Span(ORDERS, 0, 3)])
    with ledger.engine.begin() as conn:
        conn.execute(text(f"UPDATE {prefix}journal SET kind = 'new' WHERE kind = 'claim'"))
    for read in (ledger.verify, lambda group: list(ledger.newest(group)), lambda group: list(ledger.journal(group))):
        with pytest.raises(
            LedgerError, match=r"entry 2 in the journal of orders\[0\] has a kind that is not known here"
        ):
            read("billing")
