"""What only the ledger in DuckDB does: one process at a time, savepoints that are run again, refused statements."""

from __future__ import annotations

import multiprocessing
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.processes import ended, nothing_collected, running

from tidegate import App, Claim, ConfigurationError, DeadLetter, Record, Span, Table, TopicPartition, open_ledger
from tidegate.core.findings import Verdict, this_machine
from tidegate.errors import (
    LedgerConflict,
    LedgerError,
    LedgerUnavailable,
    SchemaError,
    TransactionBroken,
    WritesRefused,
)
from tidegate.ledger import FailedRecord, Limits, Outcome
from tidegate.ledger.blame import Blame, fault_of
from tidegate.ledger.duckdb import DuckdbLedger, DuckdbTransaction
from tidegate.ledger.transaction import OutcomeUnknown
from tidegate.sandbox import Kafka
from tidegate.testing import Crash, Step, TestKit

GROUP, ORDERS = "billing", TopicPartition("orders", 0)
SPAN = Span(ORDERS, 0, 3, 3)
RECORD = Record("orders", 0, 1, b"key", b"value")
QUICK = Limits(hold=0.2, lock_wait=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a table for the data."""
    made = tmp_path / "shop.duckdb"
    with duckdb.connect(made) as conn:
        conn.execute("CREATE TABLE bills (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")
    return made


@pytest.fixture
def ledger(path: Path) -> Iterator[DuckdbLedger]:
    with open_ledger(f"duckdb:///{path}", limits=QUICK) as opened:
        assert isinstance(opened, DuckdbLedger)
        yield opened


def bills(path: Path) -> list[Any]:
    with duckdb.connect(path) as conn:
        return conn.execute("SELECT id, total FROM bills ORDER BY id").fetchall()


def position(ledger: DuckdbLedger) -> int:
    assert ledger.verify(GROUP).ok
    return ledger.read(GROUP).positions[ORDERS].next_offset


def bill(tx: DuckdbTransaction, number: int, total: int | str = 1) -> None:
    assert tx.execute("INSERT INTO bills VALUES ($id, $total)", {"id": number, "total": total}) == [(1,)]


# One process


@pytest.mark.parametrize("reads", ["ledger.claim('billing', [('orders', 0)])", "ledger.totals()"])
def test_a_second_process_learns_which_process_has_the_file_and_what_to_do(
    ledger: DuckdbLedger, path: Path, reads: str
) -> None:
    ledger.create()
    script = f"import tidegate\nledger = tidegate.open_ledger('duckdb:///{path}')\n{reads}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    for word in ("LedgerUnavailable", f"has the file {path} open", "one process at a time", "Stop that process first"):
        assert word in done.stderr
    assert "Conflicting lock" not in done.stderr.splitlines()[-1]


def test_another_process_goes_on_once_every_ledger_of_this_one_is_closed(ledger: DuckdbLedger, path: Path) -> None:
    other = open_ledger(f"duckdb:///{path}")
    claims = ledger.claim(GROUP, [ORDERS])
    ledger.transact(claims, [SPAN])
    assert other.read(GROUP).positions[ORDERS].next_offset == 3
    ledger.close()
    other.close()
    script = f"import tidegate\nprint(tidegate.open_ledger('duckdb:///{path}').read('billing').positions)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "next_offset=3" in done.stdout


def test_a_ledger_that_was_closed_opens_the_file_again(ledger: DuckdbLedger) -> None:
    ledger.claim(GROUP, [ORDERS], 7)
    ledger.close()
    assert position(ledger) == 7


@pytest.mark.parametrize("url", ["duckdb://", "duckdb:///", "duckdb:///:memory:", "duckdb://shop", "duckdb:///x?a=1"])
def test_a_url_without_a_file_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="use duckdb:///shop.duckdb"):
        open_ledger(url)


def test_what_cannot_be_opened_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailable, match="cannot open the ledger at .*No such file or directory"):
        open_ledger(f"duckdb:///{tmp_path}/nowhere/x.duckdb").create()
    text = tmp_path / "text"
    text.write_text("not a database" * 1000)
    with pytest.raises(LedgerUnavailable, match="not a valid DuckDB database"):
        open_ledger(f"duckdb:///{text}").create()


def test_a_newer_schema_is_refused(ledger: DuckdbLedger, path: Path) -> None:
    ledger.create()
    with duckdb.connect(path) as conn:
        conn.execute("INSERT INTO tidegate_schema VALUES (99)")
    with pytest.raises(SchemaError, match="upgrade Tidegate"):
        open_ledger(f"duckdb:///{path}").claim(GROUP, [ORDERS])


def test_a_writer_that_waits_in_vain_names_the_thread_that_holds_the_file(ledger: DuckdbLedger) -> None:
    claims = ledger.claim(GROUP, [ORDERS])
    with ledger.transaction(claims, [SPAN]), pytest.raises(LedgerError, match=r"was not free .*held by thread Main"):
        ledger.pause(GROUP)


def move_in_a_fork(ledger: DuckdbLedger, claims: Mapping[TopicPartition, Claim]) -> None:
    """What a forked process does with the ledger that its parent has open."""
    with pytest.raises(LedgerUnavailable, match="was forked.*Open the ledger in one process only"):
        ledger.transact(claims, [SPAN])
    with pytest.raises(LedgerUnavailable, match="was forked"):
        ledger.read(GROUP)
    ledger.close()


@pytest.mark.parametrize("inside", [False, True], ids=["between transactions", "inside of one"])
def test_a_forked_process_is_refused_and_leaves_the_file_alone(ledger: DuckdbLedger, path: Path, inside: bool) -> None:
    claims = ledger.claim(GROUP, [ORDERS])
    fork = multiprocessing.get_context("fork")

    def forked(*_: object) -> None:
        child = fork.Process(target=move_in_a_fork, args=(ledger, claims))
        with nothing_collected():
            child.start()
        child.join(180)
        assert child.exitcode == 0

    if not inside:
        forked()
    ledger.transact(claims, [SPAN], lambda tx: (bill(tx, 1), forked() if inside else None))
    ledger.close()
    assert (position(ledger), bills(path)) == (3, [(1, 1)])


# What else is in the database


def test_names_that_differ_in_case_are_different_even_if_the_database_compares_without_case(
    ledger: DuckdbLedger, path: Path
) -> None:
    with duckdb.connect(path) as conn:
        conn.execute("SET GLOBAL default_collation = 'NOCASE'")
        ledger.claim(GROUP, [ORDERS], 5)
        assert ledger.claim(GROUP.upper(), [ORDERS], 9)[ORDERS].position == 9
        assert ledger.read(GROUP).positions[ORDERS].next_offset == 5
        assert ledger.pause(GROUP.upper())
        assert not ledger.read(GROUP).paused
        assert sorted(ledger.read_all()) == [GROUP.upper(), GROUP]


def test_a_ledger_in_another_schema_or_in_an_attached_file_is_not_this_one(
    ledger: DuckdbLedger, path: Path, tmp_path: Path
) -> None:
    with open_ledger(f"duckdb:///{tmp_path}/other.duckdb") as other:
        other.create()
    with duckdb.connect(path) as conn:
        conn.execute("CREATE SCHEMA old")
        conn.execute("CREATE TABLE old.tidegate_schema (version INTEGER)")
        conn.execute(f"ATTACH '{tmp_path}/other.duckdb' AS other")
        ledger.claim(GROUP, [ORDERS], 5)
        assert position(ledger) == 5
        assert conn.execute("SELECT count(*) FROM other.tidegate_positions").fetchall() == [(0,)]


def test_other_connections_with_another_configuration_are_named_as_the_cause(ledger: DuckdbLedger, path: Path) -> None:
    with (
        duckdb.connect(path, config={"memory_limit": "200MB"}),
        pytest.raises(LedgerUnavailable, match=r"different configuration.*without `config` and `read_only`"),
    ):
        ledger.create()


# Only the ledger ends the transaction


@pytest.mark.parametrize(
    "statement",
    [
        *("COMMIT", "ROLLBACK", "ABORT", "END", "BEGIN", "/* x */ commit -- y", "SELECT 1; COMMIT", "CHECKPOINT"),
        *("PREPARE p AS SELECT 1", "EXECUTE p", "SET threads = 1", "USE memory", "ATTACH ':memory:' AS m", "DETACH m"),
        *("LOAD json", "IMPORT DATABASE 'x'", "EXPORT DATABASE 'x'", "CALL force_checkpoint()", "VACUUM", ""),
        *("EXPLAIN ANALYZE COMMIT", "EXPLAIN ANALYZE ROLLBACK"),
    ],
)
@pytest.mark.parametrize("swallows", [False, True])
def test_a_statement_that_could_end_the_transaction_is_refused(
    ledger: DuckdbLedger, path: Path, statement: str, swallows: bool
) -> None:
    claims = ledger.claim(GROUP, [ORDERS])

    def handler(tx: DuckdbTransaction) -> None:
        bill(tx, 1)
        try:
            tx.execute(statement)
        except TransactionBroken:
            if not swallows:
                raise
        bill(tx, 2)

    if swallows:
        ledger.transact(claims, [SPAN], handler)
        assert (position(ledger), bills(path)) == (3, [(1, 1), (2, 1)])
    else:
        with pytest.raises(TransactionBroken, match="the ledger alone begins and ends"):
            ledger.transact(claims, [SPAN], handler)
        assert (position(ledger), bills(path)) == (0, [])


@pytest.mark.parametrize(
    "bad", ["INSERT INTO bills VALUES (1, 1)", "SELECT * FROM nowhere", "SELEC", "SELECT 'x'::INT"]
)
def test_an_error_that_the_handler_swallows_commits_nothing(ledger: DuckdbLedger, path: Path, bad: str) -> None:
    claims = ledger.claim(GROUP, [ORDERS])

    def handler(tx: DuckdbTransaction) -> None:
        bill(tx, 1)
        with suppress(duckdb.Error, LedgerError):
            tx.execute(bad)

    if bad == "SELEC":  # refused before it is sent, so that nothing is aborted
        ledger.transact(claims, [SPAN], handler)
        assert (position(ledger), bills(path)) == (3, [(1, 1)])
        return
    with pytest.raises(TransactionBroken, match=r"with tx.savepoint\(\)"):
        ledger.transact(claims, [SPAN], handler)
    assert (position(ledger), bills(path)) == (0, [])


def test_ddl_is_part_of_the_transaction(ledger: DuckdbLedger, path: Path) -> None:
    claims = ledger.claim(GROUP, [ORDERS])

    def handler(tx: DuckdbTransaction) -> None:
        tx.execute("CREATE TABLE audit AS SELECT 1 AS a")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ledger.transact(claims, [SPAN], handler)
    with duckdb.connect(path) as conn, pytest.raises(duckdb.CatalogException):
        conn.execute("SELECT * FROM audit")


# Savepoints


def test_a_savepoint_that_fails_undoes_its_own_statements_and_no_others(ledger: DuckdbLedger, path: Path) -> None:
    claims = ledger.claim(GROUP, [ORDERS])
    total = [10]

    def handler(tx: DuckdbTransaction) -> None:
        tx.execute("INSERT INTO bills VALUES (?, ?)", [1, total[0]])
        total[0] = 99  # a parameter that changes later is run again as it was
        with pytest.raises(duckdb.ConstraintException), tx.savepoint():
            bill(tx, 2)
            bill(tx, 1)
        assert tx.execute("SELECT id, total FROM bills") == [(1, 10)]
        with tx.savepoint():
            bill(tx, 3)
            with pytest.raises(LedgerError, match="nowhere"), tx.savepoint():
                tx.execute("INSERT INTO nowhere VALUES (1)")
            with pytest.raises(ZeroDivisionError), tx.savepoint():
                bill(tx, 4)
                raise ZeroDivisionError

    result = ledger.transact(claims, [SPAN], handler)
    assert result.attempts == 1
    assert (position(ledger), bills(path)) == (3, [(1, 10), (3, 1)])


def test_a_list_that_is_changed_after_its_statement_is_run_again_as_it_was(ledger: DuckdbLedger, path: Path) -> None:
    claims = ledger.claim(GROUP, [ORDERS])

    def handler(tx: DuckdbTransaction) -> None:
        ids = [1, 2]
        tx.execute("INSERT INTO bills SELECT unnest(?), 1", [ids])
        ids[:] = [8, 9]
        with pytest.raises(ZeroDivisionError), tx.savepoint():
            bill(tx, 5)
            raise ZeroDivisionError

    ledger.transact(claims, [SPAN], handler)
    assert bills(path) == [(1, 1), (2, 1)]


@pytest.mark.parametrize("swallowed", [duckdb.ConstraintException, Exception])
def test_a_handler_runs_again_if_what_it_read_before_a_failed_savepoint_has_changed(
    ledger: DuckdbLedger, path: Path, swallowed: type[Exception]
) -> None:
    claims = ledger.claim(GROUP, [ORDERS])
    seen = []

    def handler(tx: DuckdbTransaction) -> None:
        ((count,),) = tx.execute("SELECT count(*) FROM bills")
        seen.append(count)
        if count == 0:
            with duckdb.connect(path) as conn:
                conn.execute("INSERT INTO bills VALUES (7, 7)")
        with suppress(swallowed), tx.savepoint():
            tx.execute("INSERT INTO bills VALUES (8, NULL)")
        with suppress(swallowed):
            bill(tx, 100 + count)

    result = ledger.transact(claims, [SPAN], handler)
    assert (seen, result.conflicts) == ([0, 1], 1)
    assert bills(path) == [(7, 7), (101, 1)]
    assert position(ledger) == 3


# Conflicts and outages


def test_a_conflict_with_another_connection_of_the_process_is_retried(ledger: DuckdbLedger, path: Path) -> None:
    with duckdb.connect(path) as conn:
        conn.execute("INSERT INTO bills VALUES (1, 1)")
    claims = ledger.claim(GROUP, [ORDERS])
    others = []

    def handler(tx: DuckdbTransaction) -> None:
        tx.execute("SELECT 1 FROM bills")
        if not others:
            others.append(1)
            with duckdb.connect(path) as conn:
                conn.execute("UPDATE bills SET total = 5")
        tx.execute("UPDATE bills SET total = total + 1")

    result = ledger.transact(claims, [SPAN], handler)
    assert result.conflicts == 1
    assert (position(ledger), bills(path)) == (3, [(1, 6)])


def test_a_conflict_that_the_handler_swallows_is_retried(ledger: DuckdbLedger, path: Path) -> None:
    with duckdb.connect(path) as conn:
        conn.execute("INSERT INTO bills VALUES (1, 1)")
        claims = ledger.claim(GROUP, [ORDERS])
        conn.execute("BEGIN")
        conn.execute("UPDATE bills SET total = 5")
        calls = []

        def handler(tx: DuckdbTransaction) -> None:
            calls.append(1)
            if len(calls) == 2:
                conn.execute("COMMIT")
                return
            with suppress(duckdb.TransactionException):
                tx.execute("UPDATE bills SET total = 6")

        assert ledger.transact(claims, [SPAN], handler).conflicts == 1
    assert (position(ledger), bills(path)) == (3, [(1, 5)])


@pytest.mark.parametrize("column", ["next_offset", "epoch", "owner"])
def test_a_position_that_another_connection_is_changing_is_a_conflict(
    ledger: DuckdbLedger, path: Path, column: str
) -> None:
    claims = ledger.claim(GROUP, [ORDERS])
    with duckdb.connect(path) as conn:
        conn.execute("BEGIN")
        conn.execute(f"UPDATE tidegate_positions SET {column} = '9'")
        with pytest.raises(LedgerConflict):
            ledger.transact(claims, [SPAN], lambda _: pytest.fail("the handler ran"))


class Unanswered(DuckdbLedger):
    """A ledger whose next COMMIT takes effect, or not, and is not answered; the file has to be opened anew."""

    lose: bool | None = None

    def _commit(self, conn: duckdb.DuckDBPyConnection) -> None:
        lose, self.lose = self.lose, None
        if lose is not True:
            super()._commit(conn)
        if lose is not None:
            self._file.reopen()
            raise OutcomeUnknown("as if the disk had failed")


@pytest.mark.parametrize("lose", [False, True], ids=["it took effect", "it did not"])
def test_a_commit_without_an_answer_takes_effect_once(path: Path, lose: bool) -> None:
    with Unanswered(path, limits=QUICK) as ledger:
        ledger.create()
        ledger.lose = lose
        claims = ledger.claim(GROUP, [ORDERS])
        assert claims[ORDERS].epoch == 1
        ledger.lose = lose
        result = ledger.transact(claims, [SPAN], lambda tx: (bill(tx, 1), tx.park(FailedRecord(RECORD, "no"))))
        assert (result.outcome, result.unknown_outcomes) == (Outcome.COMMITTED, 1)
        assert (position(ledger), bills(path)) == (3, [(1, 1)])
        (letter,) = ledger.dead_letters(GROUP)
        ledger.lose = lose
        assert ledger.replay(letter, lambda tx: bill(tx, 2)).outcome is Outcome.COMMITTED
        assert (ledger.dead_letters(GROUP), bills(path)) == ([], [(1, 1), (2, 1)])
        ledger.lose = lose
        assert ledger.pause(GROUP)
        assert [entry.kind for entry in ledger.journal(GROUP)] == ["pause", "start", "claim", "advance"]


def fill_the_disk(path: str) -> None:
    """Files cannot grow beyond a size, as on a full disk; then they can again."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open_ledger(f"duckdb:///{path}", limits=QUICK) as ledger:
        claims = ledger.claim(GROUP, [ORDERS])

        def handler(tx: DuckdbTransaction) -> None:
            tx.execute("CREATE TABLE big AS SELECT repeat('x', 1000) || i AS s FROM range(20000) AS g (i)")

        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, most))
        with pytest.raises(WritesRefused, match="takes no writes at present"):
            ledger.transact(claims, [SPAN], handler)
        assert ledger.read(GROUP).positions[ORDERS].next_offset == 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        ledger.transact(claims, [SPAN], handler)
        assert ledger.read(GROUP).positions[ORDERS].next_offset == 3


def test_a_full_disk_refuses_the_work_whole_and_takes_it_later(path: Path) -> None:
    with running(fill_the_disk, str(path)) as child:
        assert ended(child) == 0
    with duckdb.connect(path) as conn:
        assert conn.execute("SELECT count(*) FROM big").fetchall() == [(20000,)]


@pytest.mark.parametrize(
    ("statement", "blame"),
    [
        ("INSERT INTO bills VALUES (1, NULL)", Blame.RECORD),
        ("INSERT INTO bills VALUES ('x', 1)", Blame.RECORD),
        ("INSERT INTO bills VALUES (99999999999, 1)", Blame.RECORD),
        ("INSERT INTO bills VALUES ('No space left on device', 1)", Blame.RECORD),
        ("INSERT INTO bills VALUES ('Could not write', 1)", Blame.RECORD),
        ("SELECT error('Read-only file system')", Blame.RECORD),
        ("INSERT INTO nowhere VALUES (1)", Blame.DATABASE),
        ("INSERT INTO bills (nothing) VALUES (1)", Blame.DATABASE),
        ("INSER", Blame.DATABASE),
        ("COMMIT", Blame.DATABASE),
    ],
)
def test_errors_are_the_records_or_the_databases_fault(ledger: DuckdbLedger, statement: str, blame: Blame) -> None:
    claims = ledger.claim(GROUP, [ORDERS])
    with pytest.raises((duckdb.Error, LedgerError)) as caught:
        ledger.transact(claims, [SPAN], lambda tx: tx.execute(statement))
    assert fault_of(caught.value).blame is blame


def test_the_doctor_examines_the_file_and_does_not_create_it(tmp_path: Path, ledger: DuckdbLedger) -> None:
    absent = DuckdbLedger(tmp_path / "absent.duckdb")
    assert [finding.verdict for finding in absent.examine(this_machine)] == [Verdict.WARNING]
    assert not absent.path.exists()
    assert [finding.verdict for finding in ledger.examine(this_machine)] == [Verdict.OK, Verdict.WARNING]
    ledger.create()
    assert [finding.verdict for finding in ledger.examine(this_machine)] == [Verdict.OK, Verdict.OK]


# Listeners


def shop(path: Path, **settings: Any) -> App:
    app = App(kafka="localhost:1", ledger=f"duckdb:///{path}")

    @app.listener("orders", group=GROUP, on_error=DeadLetter(), **settings)
    def charge(record: Record, tx: DuckdbTransaction) -> None:
        bill(tx, record.offset, (record.value or b"").decode())

    return app


def all_but_the_bad_one(path: Path, kit: TestKit) -> None:
    assert bills(path) == [(number, number) for number in range(30) if number != 7]
    assert [parked.letter.record.offset for parked in kit.dead_letters(GROUP)] == [7]
    kit.check()


def send_orders(kit: TestKit) -> None:
    for number in range(30):
        kit.send("orders", "no number" if number == 7 else str(number))


def test_a_listener_writes_each_record_once_and_parks_the_bad_one(path: Path) -> None:
    app = shop(path)
    with app.ledger or pytest.fail(), TestKit(app, batch=10) as kit:
        send_orders(kit)
        kit.run(Crash(Step.WRITTEN))
        kit.run(Crash(Step.COMMITTED))
        kit.run()
        all_but_the_bad_one(path, kit)


def test_a_listener_on_a_real_broker_writes_each_record_once(path: Path, kafka: Kafka) -> None:
    app = shop(path)
    with app.ledger or pytest.fail(), TestKit(app, broker=kafka.bootstrap, batch=10) as kit:
        kit.topic("orders")
        send_orders(kit)
        kit.run()
        all_but_the_bad_one(path, kit)


def test_a_sink_is_refused_with_the_way_out(path: Path) -> None:
    app = App(kafka="localhost:1", ledger=f"duckdb:///{path}")
    with pytest.raises(ConfigurationError, match=r"there are no sinks for duckdb:///.*in a listener instead"):
        app.sink("orders", into=Table("bills"))
