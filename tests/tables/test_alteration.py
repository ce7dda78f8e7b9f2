"""Tables that follow their records: columns that become wider, and lose NOT NULL, each policy on each database."""

from __future__ import annotations

import random
import threading
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine

from tidegate import ConfigurationError, Table
from tidegate.errors import LedgerBusy, LedgerDenied
from tidegate.tables import Evolution, SchemaFormat, Target
from tidegate.tables.layout import Layout

from .avro.values import Schemas
from .places import Place, feed

ALL = Evolution(widen="widen", nullable="drop")
WIDEN = Evolution(widen="widen")
WORDS = {"character varying": "varchar", "numeric": "decimal", "int": "integer", "longtext": "text"}
WORDS |= {"double precision": "double"}


def types_in(place: Place, name: str) -> dict[str, str]:
    """Return each column's type, and whether it is NOT NULL, in the words of PostgreSQL, MySQL and MariaDB alike."""
    with place.engine.connect() as conn:
        rows = conn.exec_driver_sql(
            "SELECT column_name, data_type, numeric_precision, numeric_scale, is_nullable, character_maximum_length "
            f"FROM information_schema.columns WHERE table_name = '{name}'"
        ).all()
    found = {}
    for column, spelled, precision, scale, nullable, length in rows:
        kind, bounds = WORDS.get(spelled, spelled), ""
        if kind == "decimal" and precision:
            bounds = f"({precision},{scale})"
        if kind == "varchar" and length:
            bounds = f"({length})"
        found[column] = kind + bounds + ("" if nullable == "YES" else " not null")
    return found


def as_numbers(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [tuple(Decimal(value) if isinstance(value, Decimal | int) else value for value in row) for row in rows]


@pytest.fixture(params=["postgres", "mariadb", "mysql"])
def server(request: pytest.FixtureRequest) -> Any:
    """Each database that can alter a column."""
    opened = Place(request.param, request.getfixturevalue(request.param).url)
    yield opened
    opened.engine.dispose()


REAL = {"postgres": "real", "mysql": "float"}


def test_columns_become_wider_in_the_middle_of_a_batch(server: Place) -> None:
    columns = (
        f"id smallint PRIMARY KEY, n integer, d decimal(5,2), f {REAL[server.database]}, s varchar(5), x varchar(5)"
    )
    name = server.create(columns)
    values: list[dict[str, Any]] = [
        {"id": 1, "n": 1, "d": 1.25, "f": 0.5, "s": "a", "x": "x"},
        {"id": 2**40, "n": 2**33, "d": 12345.678, "f": 0.1, "s": "abcdefghi"},
        {"id": 3, "n": -5, "d": -1.25, "f": 1e300, "s": "b"},
    ]
    table = Table(name, key="id", mode="upsert", evolve=WIDEN)
    assert server.put(table, values).misfits == ()
    open_decimal = "decimal" if server.database == "postgres" else "decimal(65,30)"
    assert types_in(server, name) == {
        "id": "bigint not null",
        "n": "bigint",
        "d": open_decimal,
        "f": "double",
        "s": "text",
        "x": "varchar(5)",
    }
    assert as_numbers(server.rows(name)) == [
        (1, 1, Decimal("1.25"), 0.5, "a", "x"),
        (3, -5, Decimal("-1.25"), 1e300, "b", None),
        (2**40, 2**33, Decimal("12345.678"), 0.1, "abcdefghi", None),
    ]


@pytest.mark.parametrize("evolve", [True, False, Evolution(widen="refuse")])
def test_without_the_policy_nothing_is_widened_and_the_record_is_a_misfit(server: Place, evolve: Any) -> None:
    name = server.create("id integer PRIMARY KEY, s varchar(5) NOT NULL")
    rows = server.put(
        Table(name, evolve=evolve), [{"id": 1, "s": "a"}, {"id": 2**40, "s": "b"}, {"id": 3, "s": None}, {"id": 4}]
    )
    assert [(misfit.place, misfit.column) for misfit in rows.misfits] == [(1, "id"), (2, "s"), (3, "s")]
    assert types_in(server, name) == {"id": "integer not null", "s": "varchar(5) not null"}


def test_an_integer_becomes_a_decimal_and_what_no_type_holds_is_a_misfit_with_both_types(server: Place) -> None:
    name = server.create("id integer, n bigint")
    values = [{"id": 1, "n": 2**62}, {"id": 2, "n": 1.5}, {"id": 3, "n": "many"}, {"id": 4, "n": 2**70}]
    (misfit,) = server.put(Table(name, evolve=WIDEN), values).misfits
    assert (misfit.place, misfit.column) == (2, "n")
    assert "the field text, and no wider type keeps every value of both" in misfit.why
    assert ("numeric" if server.database == "postgres" else "decimal(65,30)") in misfit.why
    assert as_numbers(server.rows(name)) == [(1, 2**62), (2, Decimal("1.5")), (4, 2**70)]


def test_exact_values_widen_a_column_only_within_its_own_kind_of_type(on_postgres: Place) -> None:
    name = on_postgres.create("id smallint, s varchar(2)")
    values: list[dict[str, Any]] = [{"id": 2**40}, {"id": 1.5}, {"id": 1, "s": 12345}, {"id": 2, "s": "abc"}]
    misfits = on_postgres.put(Table(name, evolve=WIDEN, exact=True), values).misfits
    assert [(misfit.place, misfit.column) for misfit in misfits] == [(1, "id"), (2, "s")]
    assert types_in(on_postgres, name) == {"id": "bigint", "s": "text"}


def test_a_record_that_does_not_fit_in_any_case_alters_nothing(server: Place) -> None:
    name = server.create("id integer, n smallint NOT NULL, day date")
    values: list[dict[str, Any]] = [{"id": 2**40, "n": None, "day": "no day"}, {"id": 1, "n": 2**20, "day": 5}]
    assert len(server.put(Table(name, evolve=ALL), values).misfits) == 2
    assert types_in(server, name) == {"id": "integer", "n": "smallint not null", "day": "date"}


def test_an_integer_becomes_a_double_only_if_a_double_holds_every_value_of_it(server: Place) -> None:
    name = server.create("small integer, big bigint")
    target = Target(server.engine, Table(name, evolve=WIDEN))
    batch = pa.RecordBatch.from_pydict({"small": pa.array([1.0, 0.5, 2.0]), "big": pa.array([1.0, 2.0, 0.5])})
    rows = target.fit(batch)
    server.write(target, rows)
    (misfit,) = rows.misfits
    assert (misfit.place, misfit.column) == (2, "big")
    assert "the column is bigint" in misfit.why
    assert "the field double" in misfit.why
    assert types_in(server, name) == {"small": "double", "big": "bigint"}
    assert server.rows(name) == [(0.5, 2), (1.0, 1)]


def test_not_null_is_dropped_for_null_and_for_a_missing_field_and_never_of_the_key(server: Place) -> None:
    name = server.create(
        "id integer PRIMARY KEY, a integer NOT NULL, b varchar(9) NOT NULL, c integer DEFAULT 5 NOT NULL, "
        "d varchar(12) DEFAULT 'x NOT NULL' NOT NULL"
    )
    table = Table(name, key="id", mode="upsert", evolve=ALL)
    values = [{"id": 1, "a": 1, "b": "b"}, {"id": 2, "a": None}, {"id": None, "a": 1, "b": "b"}, {"a": 1, "b": "b"}]
    rows = server.put(table, values)
    assert [(misfit.place, misfit.column) for misfit in rows.misfits] == [(2, "id"), (3, "id")]
    assert types_in(server, name) == {
        "id": "integer not null",
        "a": "integer",
        "b": "varchar(9)",
        "c": "integer not null",
        "d": "varchar(12) not null",
    }
    default = "x NOT NULL"
    assert server.rows(name) == [(1, 1, "b", 5, default), (2, None, None, 5, default)]
    assert server.put(table, [{"id": 3, "a": 1, "b": "b", "d": None}]).misfits == ()
    server.put(Table(name), [{"id": 4}])
    assert [row[4] for row in server.rows(name)] == [default, default, None, default]


def test_a_column_of_a_primary_key_that_is_not_the_key_of_the_table_stays_not_null(server: Place) -> None:
    name = server.create("id integer PRIMARY KEY, n integer")
    (misfit,) = server.put(Table(name, evolve=ALL), [{"id": None, "n": 1}]).misfits
    assert misfit.column == "id"
    assert "cannot become NULL" in misfit.why


def test_a_text_keeps_its_collation_its_default_and_its_comment(on_mysql: Place) -> None:
    name = on_mysql.create(
        "id integer PRIMARY KEY, a varchar(15) CHARACTER SET latin1 COLLATE latin1_bin NOT NULL "
        "DEFAULT 'it''s, NOT NULL' COMMENT 'a, b', b tinytext COLLATE utf8mb4_general_ci COMMENT 'NOT NULL', "
        "c varbinary(4), e enum('x NOT NULL','y') NOT NULL DEFAULT 'y' COMMENT 'e', "
        "n int unsigned NOT NULL DEFAULT 7"
    )
    values = [{"id": 1, "a": "a" * 20, "b": "é" * 200, "c": "AAAAAAAAAAAA", "e": None, "n": 2**33}, {"id": 2, "n": -1}]
    assert on_mysql.put(Table(name, evolve=ALL), values).misfits == ()
    with on_mysql.engine.connect() as conn:
        found = conn.exec_driver_sql(
            "SELECT column_name, column_type, collation_name, is_nullable, column_default, column_comment "
            f"FROM information_schema.columns WHERE table_name = '{name}' ORDER BY ordinal_position"
        ).all()
    columns = {row[0]: tuple(row[1:4]) for row in found}
    assert columns["a"] == ("varchar(32)", "latin1_bin", "NO")
    assert columns["b"] == ("longtext", "utf8mb4_general_ci", "YES")
    assert columns["c"][0] == "longblob"
    assert columns["e"][0::2] == ("enum('x NOT NULL','y')", "YES")
    assert columns["n"][0].startswith("bigint")
    assert [row[5] for row in found] == ["", "a, b", "NOT NULL", "", "e", ""]
    assert "it's, NOT NULL" in found[1][4].replace("''", "'")
    on_mysql.run(f"INSERT INTO {name} (id) VALUES (3)")
    assert on_mysql.rows_of(f"SELECT a, e, n FROM {name} ORDER BY id") == [
        ("a" * 20, None, 2**33),
        ("it's, NOT NULL", "y", -1),
        ("it's, NOT NULL", "y", 7),
    ]


def test_a_text_in_an_index_becomes_longer_as_far_as_an_index_takes_it(on_mysql: Place) -> None:
    name = on_mysql.create("id varchar(5) PRIMARY KEY, s varchar(5), INDEX (s)")
    table = Table(name, key="id", mode="upsert", evolve=WIDEN)
    values = [{"id": "a", "s": "b"}, {"id": "c" * 200, "s": "d" * 100}, {"id": "e" * 1000}, {"id": "f" * 300}]
    (misfit,) = on_mysql.put(table, values).misfits
    assert (misfit.place, misfit.column) == (2, "id")
    assert "it is in an index, which takes 768 characters at most" in misfit.why
    assert types_in(on_mysql, name) == {"id": "varchar(512) not null", "s": "varchar(128)"}
    assert [len(row[0]) for row in on_mysql.rows(name)] == [1, 200, 300]
    assert [misfit.place for misfit in on_mysql.put(table, [{"id": "a", "s": "x"}, {"id": "g" * 769}]).misfits] == [1]
    assert on_mysql.rows(name)[0] == ("a", "x")


def test_a_column_that_a_foreign_key_needs_stays_and_the_misfit_says_so(on_mysql: Place) -> None:
    parent = on_mysql.create("id integer PRIMARY KEY")
    name = on_mysql.create(f"id integer PRIMARY KEY, p integer, FOREIGN KEY (p) REFERENCES {parent} (id)")
    rows = on_mysql.put(Table(name, evolve=WIDEN), [{"id": 2**40, "p": None}, {"id": 2, "p": 2**40}])
    (misfit,) = rows.misfits
    assert (misfit.place, misfit.column) == (1, "p")
    assert "cannot become integer" in misfit.why
    assert "foreign key" in misfit.why
    assert on_mysql.rows(name) == [(2**40, None)]


def test_a_column_that_a_view_needs_stays_and_the_database_is_not_asked_again_at_once(on_postgres: Place) -> None:
    name = on_postgres.create("id integer, s varchar(3)")
    on_postgres.run(f"CREATE VIEW v_{name} AS SELECT s FROM {name}")
    table = Table(name, evolve=WIDEN)
    rows = on_postgres.put(table, [{"id": 2**40, "s": "a"}, {"id": 2, "s": "abcdef"}])
    (misfit,) = rows.misfits
    assert (misfit.place, misfit.column) == (1, "s")
    assert "the column is character varying(3), and cannot become text" in misfit.why
    assert "used by a view" in misfit.why
    on_postgres.statements.clear()
    (misfit,) = on_postgres.put(table, [{"id": 2, "s": "abcdef"}]).misfits
    assert "used by a view" in misfit.why
    assert [each for each in on_postgres.statements if each.startswith(("ALTER", "LOCK"))] == []


def test_a_text_keeps_the_collation_that_decides_which_keys_are_equal(on_postgres: Place) -> None:
    on_postgres.run(
        "CREATE COLLATION IF NOT EXISTS no_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    )
    name = on_postgres.create("id varchar(3) COLLATE no_case PRIMARY KEY, n smallint")
    table = Table(name, key="id", mode="upsert", evolve=WIDEN)
    on_postgres.put(table, [{"id": "abc", "n": 1}, {"id": "ABCDEF", "n": 2}, {"id": "abcdef", "n": 3}])
    assert {(row[0].lower(), row[1]) for row in on_postgres.rows(name)} == {("abc", 1), ("abcdef", 3)}


def test_a_float_in_the_key_stays_because_equal_keys_would_differ_afterwards(server: Place) -> None:
    name = server.create(f"id {REAL[server.database]} NOT NULL PRIMARY KEY, f {REAL[server.database]}")
    table = Table(name, key="id", mode="upsert", evolve=WIDEN)
    assert [misfit.column for misfit in server.put(table, [{"id": 0.5, "f": 0.1}, {"id": 1e300}]).misfits] == ["id"]
    assert types_in(server, name)["f"] == "double"
    assert types_in(server, name)["id"] != "double not null"


@pytest.mark.parametrize("declared", ["decimal(9,2)", "decimal(7,4)"])
def test_a_declared_type_is_the_widest_that_a_column_is_widened_to(server: Place, declared: str) -> None:
    name = server.create("id integer, d decimal(5,2), n smallint")
    table = Table(name, evolve=WIDEN, columns={"d": declared, "n": "integer"})
    values = [
        {"id": 1, "d": 1},
        {"id": 2, "d": 1234.5},
        {"id": 3, "d": 1.123},
        {"id": 4, "n": 1.5},
        {"id": 5, "n": 2**50},
    ]
    misfits = {misfit.place for misfit in server.put(table, values).misfits}
    assert misfits == ({2, 3} if declared == "decimal(9,2)" else {1, 3})
    assert types_in(server, name)["n"] == "bigint"


def test_on_sqlite_lengths_and_digits_count_for_nothing_and_not_null_stays(sqlite: Place) -> None:
    name = sqlite.create("id INTEGER PRIMARY KEY, s VARCHAR(3), d DECIMAL(5,2), n INTEGER")
    values = [{"id": 1, "s": "abcdef", "d": 12345.678}, {"id": 2, "s": "a", "d": 1.5}, {"id": 3, "n": 1.5}]
    (misfit,) = sqlite.put(Table(name, key="id", mode="upsert", evolve=WIDEN), values).misfits
    assert (misfit.place, misfit.column) == (2, "n")
    assert sqlite.rows(name) == [(1, "abcdef", 12345.678, None), (2, "a", 1.5, None)]
    with pytest.raises(ConfigurationError, match="nullable='drop' needs a database that can drop NOT NULL"):
        sqlite.put(Table(name, evolve=ALL), values)


def test_a_field_without_a_column_is_left_out_refused_or_added(sqlite: Place) -> None:
    for add, names in (("ignore", [("id",)]), ("refuse", []), ("add", [("id", "more")])):
        name = sqlite.create("id INTEGER")
        rows = sqlite.put(Table(name, evolve=Evolution(add=add)), [{"id": 1, "more": 2}])
        assert len(sqlite.rows(name)) == len(names)
        if add == "refuse":
            assert "field 'more': no column comes from it, and the table has add='refuse'" in str(rows.misfits)


NUMBER = st.one_of(
    st.integers(-(2**80), 2**80),
    st.integers(-200, 200),
    st.integers(-(10**12), 10**12).map(lambda digits: Decimal(digits).scaleb(-5)),
    st.sampled_from(["text", "77", True, None]),
)
RECORD = st.fixed_dictionaries(
    {"id": st.integers(1, 4)},
    optional={
        "n": NUMBER,
        "d": NUMBER,
        "s": st.text("ab", max_size=70) | st.none() | st.integers(0, 10**6),
        "f": st.sampled_from([0.5, 0.1, 1e300, 3, None]),
        "r": st.none() | st.integers(0, 5),
    },
)
CUTS = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])


def test_the_table_its_types_and_its_misfits_do_not_depend_on_where_batches_end(server: Place) -> None:
    columns = "id smallint PRIMARY KEY, n smallint, d decimal(6,2), s varchar(4), r integer NOT NULL"
    columns += f", f {REAL[server.database]}"

    @CUTS
    @given(values=st.lists(RECORD, min_size=2, max_size=12), seed=st.integers(0, 99))
    def check(values: list[dict[str, Any]], seed: int) -> None:
        cuts = random.Random(seed)
        found = []
        for size in (1, len(values), 0):
            name = server.create(columns)
            table = Table(name, key="id", mode="upsert", evolve=ALL)
            misfits, at = [], 0
            while at < len(values):
                count = size or cuts.randint(1, 4)
                rows = server.put(table, [encoded(value) for value in values[at : at + count]])
                misfits += [at + misfit.place for misfit in rows.misfits]
                at += count
            found.append((misfits, types_in(server, name), as_numbers(server.rows(name))))
            server.run(f"DROP TABLE {name}")
        assert found[1] == found[0]
        assert found[2] == found[0]

    check()


def encoded(value: dict[str, Any]) -> bytes:
    import msgspec

    return msgspec.json.Encoder(decimal_format="number").encode(value)


def test_two_members_that_widen_at_once_never_narrow_what_the_other_has_widened(server: Place) -> None:
    for turn in range(4):
        name = server.create("id integer PRIMARY KEY, n smallint, s varchar(3)")
        engines = [create_engine(server.url) for _ in range(2)]
        members = [Target(engine, Table(name, key="id", mode="upsert", evolve=ALL)) for engine in engines]
        for member in members:
            member.prepare()  # both know the table as it is now
        values = [{"id": 1, "n": 2**40, "s": "a"}, {"id": 2, "n": 2**70, "s": "abcdef"}]
        start, failures = threading.Barrier(2), []

        def read(member: Target, value: dict[str, Any], start: Any = start, failures: Any = failures) -> None:
            start.wait(30)
            try:
                while True:
                    try:
                        failures += member.read(feed([value])).misfits
                        return
                    except LedgerBusy:
                        continue
            except Exception as error:
                failures.append(error)

        pairs = zip(members, reversed(values) if turn % 2 else values, strict=True)
        threads = [threading.Thread(target=read, args=pair) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failures == []
        assert types_in(server, name)["n"].startswith("decimal")
        assert server.put(Table(name, key="id", mode="upsert", evolve=ALL), values).misfits == ()
        assert as_numbers(server.rows(name)) == [(1, 2**40, "a"), (2, 2**70, "abcdef")]
        for engine in engines:
            engine.dispose()


def test_a_member_that_knows_the_table_as_it_was_does_not_narrow_it(server: Place) -> None:
    name = server.create("id integer PRIMARY KEY, n smallint")
    late, early = (Target(server.engine, Table(name, key="id", mode="upsert", evolve=WIDEN)) for _ in range(2))
    late.prepare()
    assert early.read(feed([{"id": 1, "n": 2**70}])).misfits == ()
    assert late.read(feed([{"id": 2, "n": 2**40}])).misfits == ()
    assert types_in(server, name)["n"].startswith("decimal")


def test_an_alteration_that_gets_no_lock_gives_up_in_time_and_works_later(server: Place) -> None:
    name = server.create("id integer, n smallint")
    target = Target(server.engine, Table(name, evolve=WIDEN))
    target.prepare()
    with server.engine.begin() as other:
        other.exec_driver_sql(f"INSERT INTO {name} VALUES (1, 1)")
        with pytest.raises(LedgerBusy, match="column 'n' could not be altered yet, because others use the table"):
            target.read(feed([{"id": 2, "n": 2**30}]))
    rows = target.read(feed([{"id": 2, "n": 2**30}]))
    server.write(target, rows)
    assert server.rows(name) == [(1, 1), (2, 2**30)]


def test_a_login_that_may_not_alter_the_table_is_told_what_it_lacks(on_postgres: Place) -> None:
    name = on_postgres.create("id integer, n smallint")
    on_postgres.run(
        "DO $$ BEGIN CREATE ROLE narrow LOGIN PASSWORD 'narrow'; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
    )
    on_postgres.run(f"GRANT SELECT, INSERT ON {name} TO narrow")
    login = create_engine(on_postgres.engine.url.set(username="narrow", password="narrow"))
    with pytest.raises(LedgerDenied, match='login "narrow" may not alter it.*OWNER TO "narrow"'):
        Target(login, Table(name, evolve=WIDEN)).read(feed([{"id": 2, "n": 2**30}]))
    login.dispose()


def test_evolve_takes_a_boolean_a_policy_and_in_a_mapping_only_known_words() -> None:
    assert Table("t", evolve={"widen": "widen"}).evolution == WIDEN  # type: ignore[arg-type]
    assert Table("t", evolve=True).evolution == Evolution()
    assert Table("t", unknown="refuse").evolution == Evolution(add="refuse")
    for wrong, words in (
        ({"widen": "narrow"}, "widen: expected one of 'widen', 'refuse'"),
        ({"wider": "widen"}, "no argument 'wider'; did you mean 'widen'"),
        ("perhaps", "evolve: expected true or false, or a policy"),
        (None, "evolve: expected true or false"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            Table("t", evolve=wrong)  # type: ignore[arg-type]
    for policy in (True, Evolution(), Evolution(add="ignore")):
        with pytest.raises(ConfigurationError, match="unknown='refuse' refuses it"):
            Table("t", evolve=policy, unknown="refuse")
    Table("t", evolve=Evolution(add="refuse"), unknown="refuse")


def test_a_layout_of_a_table_that_follows_its_records_can_be_pickled(server: Place) -> None:
    import pickle

    layout = Target(server.engine, Table(server.create("id integer"), evolve=ALL)).layout
    again = pickle.loads(pickle.dumps(layout))
    assert isinstance(again, Layout)
    assert again == layout


def total_of(precision: int, scale: int, n: str) -> dict[str, Any]:
    total = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    fields = [{"name": "id", "type": "int"}, {"name": "total", "type": total}, {"name": "n", "type": n}]
    return {"type": "record", "name": "O", "fields": fields}


def test_columns_follow_the_schemas_of_avro_records_in_the_middle_of_a_batch(server: Place) -> None:
    schemas = Schemas(total_of(5, 2, "int"), total_of(12, 4, "double"))
    name = server.create("id integer PRIMARY KEY, total decimal(5,2), n smallint")
    values = [
        schemas.bytes_of(1, {"id": 1, "total": Decimal("1.25"), "n": 1}),
        schemas.bytes_of(2, {"id": 2, "total": Decimal("12345.0625"), "n": 0.5}),
        schemas.bytes_of(1, {"id": 3, "total": Decimal("-999.99"), "n": 3}),
    ]
    table = Table(name, key="id", mode="upsert", evolve=WIDEN)
    form = SchemaFormat("avro", registry=schemas)  # type: ignore[arg-type]
    assert server.put(table, values, format=form).misfits == ()
    assert types_in(server, name) == {"id": "integer not null", "total": "decimal(12,4)", "n": "double"}
    assert server.rows(name) == [(1, Decimal("1.25"), 1.0), (2, Decimal("12345.0625"), 0.5), (3, Decimal("-999.99"), 3)]


def event(number: int, note: str | None, n: int, *, optional: bool = True) -> dict[str, Any]:
    fields = [
        {"field": "id", "type": "int64"},
        {"field": "note", "type": "string", "optional": optional},
        {"field": "n", "type": "int64"},
    ]
    return {"schema": {"type": "struct", "fields": fields}, "payload": {"id": number, "note": note, "n": n}}


def test_columns_follow_the_schemas_of_kafka_connect(server: Place) -> None:
    name = server.create("id integer PRIMARY KEY, note varchar(5) NOT NULL, n smallint")
    values = [event(1, "a", 1, optional=False), event(2, "abcdef", 2**40), event(3, None, 3)]
    table = Table(name, key="id", mode="upsert", evolve=ALL)
    assert server.put(table, values, format="connect-json").misfits == ()
    assert types_in(server, name) == {"id": "integer not null", "note": "text", "n": "bigint"}
    assert server.rows(name) == [(1, "a", 1), (2, "abcdef", 2**40), (3, None, 3)]


def test_columns_follow_change_events(server: Place) -> None:
    name = server.create("id integer PRIMARY KEY, note varchar(5) NOT NULL, n smallint")
    rows: list[dict[str, Any]] = [{"id": 1, "note": "a", "n": 1}, {"id": 2, "note": "abcdef", "n": 2**40}]
    rows += [{"id": 2**40, "note": None, "n": 3}]
    values = [{"op": "c", "before": None, "after": row, "source": {}} for row in rows]
    deletion = {"op": "d", "before": rows[1], "after": None, "source": {}}
    table = Table(name, key="id", mode="upsert", evolve=ALL)
    assert server.put(table, [*values, deletion], format="debezium").misfits == ()
    assert types_in(server, name) == {"id": "bigint not null", "note": "text", "n": "bigint"}
    assert server.rows(name) == [(1, "a", 1), (2**40, None, 3)]
