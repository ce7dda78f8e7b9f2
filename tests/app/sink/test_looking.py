"""What a sink finds out about its table before the first row, and while it runs."""

from __future__ import annotations

import secrets

import pytest
from sqlalchemy import create_engine
from tests.app.sink.shop import GROUP, Shop

from tidegate import ConfigurationError
from tidegate.errors import LedgerDenied, ListenerStopped
from tidegate.sandbox import Postgres

UPSERT = {"key": "id", "mode": "upsert"}


@pytest.mark.parametrize(
    "columns", [None, {"id": "value.id", "n": "value.n", "at": "timestamp"}], ids=["fields", "mapped"]
)
def test_tombstones_before_the_table_is_created_pass(shop: Shop, columns: dict[str, str] | None) -> None:
    shop.send(None, None, key=b"1")
    shop.sink(into={**UPSERT, "create": True}, columns=columns)
    assert list(shop.kit.positions(GROUP).values()) == [2]
    shop.send({"id": 1, "n": 5}, {"id": 2, "n": 6}, key=b"1")
    shop.send(None, key=b"2")
    shop.sink(into={**UPSERT, "create": True}, columns=columns)
    assert shop.rows("id, n") == [(1, 5)]
    assert not shop.letters()


def test_an_engine_without_transactions_stops_the_sink_also_if_it_comes_late(shop: Shop) -> None:
    if shop.database != "mysql":
        pytest.skip("other databases have but one engine")
    shop.create("id INTEGER, n INTEGER")
    shop.send(*({"id": number} for number in range(4)))
    read = shop.once(f"ALTER TABLE {shop.table} ENGINE=MyISAM", at=3)
    with pytest.raises(ConfigurationError, match="its engine MyISAM has no transactions"):
        shop.sink(format=read, batch=2)
    assert list(shop.kit.positions(GROUP).values()) == [2]
    assert not shop.letters()


def test_a_trigger_that_comes_late_fires_for_each_record_from_then_on(shop: Shop) -> None:
    shop.create("id INTEGER PRIMARY KEY, n INTEGER")
    shop.create("n INTEGER", f"{shop.table}_seen")
    shop.send(*({"id": 1, "n": number} for number in range(6)))
    insert = f"INSERT INTO {shop.table}_seen VALUES (NEW.n)"
    made = {
        "postgresql": [
            f"CREATE FUNCTION {shop.table}_f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {insert}; RETURN NEW; END'",
            f"CREATE TRIGGER g AFTER INSERT OR UPDATE ON {shop.table} FOR EACH ROW EXECUTE FUNCTION {shop.table}_f()",
        ],
        "mysql": [f"CREATE TRIGGER {shop.table}_g BEFORE INSERT ON {shop.table} FOR EACH ROW {insert}"],
        "sqlite": [f"CREATE TRIGGER {shop.table}_g BEFORE INSERT ON {shop.table} BEGIN {insert}; END"],
    }
    shop.sink(format=shop.once(made[shop.database], at=0), into=UPSERT, batch=3)
    assert shop.rows() == [(1, 5)]
    assert shop.rows(table=f"{shop.table}_seen") == [(number,) for number in range(6)]


def test_a_right_that_is_taken_away_stops_the_sink_and_parks_nothing(postgres: Postgres) -> None:
    user = f"u{secrets.token_hex(6)}"
    admin = create_engine(postgres.url, isolation_level="AUTOCOMMIT")
    with admin.connect() as conn:
        conn.exec_driver_sql(f"CREATE ROLE {user} LOGIN PASSWORD '{user}'")
        conn.exec_driver_sql(f"GRANT CREATE, USAGE ON SCHEMA public TO {user}")
    shop = Shop(postgres.url_for(user, user))
    with admin.connect() as conn:
        conn.exec_driver_sql(f"CREATE TABLE {shop.table} (id integer PRIMARY KEY)")
        shop.send({"id": 1}, {"id": 2})
        with pytest.raises(LedgerDenied, match=f'run GRANT INSERT ON "{shop.table}" TO "{user}"'):
            shop.sink()
        conn.exec_driver_sql(f"GRANT INSERT, SELECT ON {shop.table} TO {user}")

        def read(record: object) -> object:
            conn.exec_driver_sql(f"REVOKE INSERT ON {shop.table} FROM {user}")
            return {"id": 1}

        with pytest.raises(
            LedgerDenied, match=f'permission denied for table {shop.table}.*GRANT INSERT ON "{shop.table}"'
        ):
            shop.sink(format=read)
        assert not shop.letters()
        conn.exec_driver_sql(f"GRANT INSERT ON {shop.table} TO {user}")
        shop.sink()
    assert shop.rows() == [(1,), (2,)]
    shop.close()
    admin.dispose()


def test_row_level_security_and_views_take_what_copy_cannot_write(postgres: Postgres) -> None:
    shop = Shop(postgres.url)
    shop.create("id integer PRIMARY KEY, n integer", f"{shop.table}_base")
    shop.sql(f"CREATE VIEW {shop.table} AS SELECT id, n FROM {shop.table}_base WHERE n < 5 WITH CHECK OPTION")
    shop.send({"id": 1, "n": 1}, {"id": 2, "n": 9}, {"id": 3, "n": 3})
    shop.sink()
    assert shop.rows() == [(1, 1), (3, 3)]
    assert [offset for offset, _ in shop.letters()] == [1]
    shop.close()


def test_a_trigger_that_names_a_missing_table_stops_the_sink_with_an_error_that_names_it(shop: Shop) -> None:
    shop.create("id INTEGER PRIMARY KEY, n INTEGER")
    insert = f"INSERT INTO {shop.table}_gone VALUES (NEW.n)"
    made = {
        "postgresql": [
            f"CREATE FUNCTION {shop.table}_f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {insert}; RETURN NEW; END'",
            f"CREATE TRIGGER g BEFORE INSERT ON {shop.table} FOR EACH ROW EXECUTE FUNCTION {shop.table}_f()",
        ],
        "mysql": [f"CREATE TRIGGER {shop.table}_g BEFORE INSERT ON {shop.table} FOR EACH ROW {insert}"],
        "sqlite": [f"CREATE TRIGGER {shop.table}_g BEFORE INSERT ON {shop.table} BEGIN {insert}; END"],
    }
    for statement in made[shop.database]:
        shop.sql(statement)
    shop.send({"id": 1, "n": 5}, {"id": 2, "n": 6})
    for into in ({}, UPSERT):
        with pytest.raises(ListenerStopped) as stopped:
            shop.sink(into=into)
        assert str(stopped.value).startswith(f"sink into {shop.table}, group {GROUP!r}: the database refused with ")
        assert f"{shop.table}_gone" in str(stopped.value)
        assert "fix what the error names" in str(stopped.value)
        assert not any(word in str(stopped.value) for word in ("LOAD DATA", "[SQL", "sqlalche.me"))
    assert not shop.letters()
    assert not shop.rows()
