"""Checks of a ledger in a SQL database, for ``tidegate doctor``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from tidegate.core.findings import Clock, Finding, compare_clocks
from tidegate.errors import LedgerDenied, LedgerError, SchemaError
from tidegate.ledger.sql.dialect import driver_error
from tidegate.ledger.sql.ledger import SqlLedger
from tidegate.ledger.sql.schema import STEPS
from tidegate.ledger.transaction import Retriable

__all__ = ["examine_sql", "network_file_system"]


_CONSUMERS: dict[str, tuple[str, ...]] = {
    "schema": ("SELECT",),
    "positions": ("SELECT", "INSERT", "UPDATE"),
    "groups": ("SELECT", "INSERT", "UPDATE"),
    "journal": ("SELECT", "INSERT"),
    "history": ("SELECT", "INSERT"),
    "dead_letters": ("SELECT", "INSERT"),
    "deployments": ("SELECT", "INSERT"),
    "changes": ("SELECT", "INSERT", "DELETE"),
}
_OPERATORS: dict[str, tuple[str, ...]] = {
    "journal": ("DELETE",),
    "history": ("DELETE",),
    "dead_letters": ("UPDATE", "DELETE"),
}
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs", "fuse.glusterfs"}
_MAY_LOSE = "the last commits may be lost in a power cut, data and position together; neither a gap nor a repetition"


def examine_sql(ledger: SqlLedger, now: Clock) -> Iterator[Finding]:
    """Check a ledger and yield the findings; ``now`` is this machine's clock."""
    path = _sqlite_file(ledger)
    if path is not None:
        yield from _place(path)
        if not path.exists():
            return
    try:
        ledger.meet()
        with ledger._connection() as conn:
            yield Finding.ok("ledger", f"{ledger} answers")
            tables = _tables(ledger, conn)
            yield tables
            if tables.verdict == "ok":
                yield _grants(ledger, conn)
            with ledger._own_errors():
                yield compare_clocks(lambda: _now(ledger, conn), now)
                yield _durability(ledger, conn)
    except Retriable as trouble:
        yield _away(str(trouble.amounts_to(f"the ledger at {ledger}")))
    except LedgerError as error:
        yield _away(str(error))


def _away(said: str) -> Finding:
    return Finding.fault(
        "ledger", said, "see that the database runs, that it can be reached from here, and that the login is right"
    )


def _sqlite_file(ledger: SqlLedger) -> Path | None:
    name = ledger.engine.url.database
    is_file = ledger.engine.dialect.name == "sqlite" and name and not name.startswith("file:")
    return Path(name) if is_file and name else None


def _place(path: Path) -> Iterator[Finding]:
    """Check where the file of a SQLite ledger is, or would be created."""
    folder = path.parent.resolve()
    if (kind := network_file_system(folder)) is not None:
        yield Finding.fault(
            "ledger",
            f"{path} is on a file system of the network ({kind})",
            "its locks cannot be relied on, and they are what keeps two consumers apart; use a local disk, or a server",
        )
    if path.exists():
        return
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        yield Finding.fault(
            "ledger",
            f"{path} does not exist, and cannot be created in {folder}",
            "create the directory, or check the path",
        )
    else:
        yield Finding.warning("ledger", f"{path} does not exist yet", "it is created on first use; check the path")


def network_file_system(folder: Path, mounts: Path = Path("/proc/mounts")) -> str | None:
    """Return the type of a folder's file system if it is a network file system, as far as ``mounts`` lists it."""
    try:
        lines = [line.split() for line in mounts.read_text(errors="replace").splitlines()]
    except OSError:
        return None
    # Later mounts hide earlier ones; a space in a name is written as \\040.
    found = {Path(line[1].replace("\\040", " ")): line[2] for line in lines if len(line) > 2}
    for parent in (folder, *folder.parents):
        if parent in found:
            return found[parent] if found[parent] in _NETWORK else None
    return None


def _tables(ledger: SqlLedger, conn: Connection) -> Finding:
    check, create = "tables", "run ledger.create() once, with a login that may create tables"
    tables = ledger.meet().tables
    try:
        with ledger._own_errors():
            version = ledger._version(conn)
            if version == 0:
                return Finding.warning(
                    check, f"the ledger at {ledger} has no tables yet", f"they are created on first use; or {create}"
                )
            if version < len(STEPS):
                said = f"the tables have schema version {version}, and this Tidegate needs {len(STEPS)}"
                return Finding.fault(check, said, create)
            present = set(inspect(conn).get_table_names())
            missing = [table.name for table in tables.all if table.name not in present]
            engines = ledger.meet().dialect.without_transactions(conn, [table.name for table in tables.all])
    except SchemaError as error:
        return Finding.fault(check, str(error), "upgrade Tidegate here, or use another prefix")
    except LedgerDenied as error:
        return Finding.fault(check, str(error), "give the login the rights that docs/ledger.md lists")
    finally:
        conn.rollback()
    if missing:
        return Finding.fault(check, f"there is no table {', '.join(missing)}", f"restore it from a backup, or {create}")
    for name, engine in engines.items():
        said = f"table {name} has the engine {engine}, which has no transactions: data and position commit apart"
        return Finding.fault(check, said, f"run ALTER TABLE `{name}` ENGINE=InnoDB")
    return Finding.ok(check, f"the tables have schema version {version}")


def _grants(ledger: SqlLedger, conn: Connection) -> Finding:
    advice = "grant it; docs/ledger.md has the statements"
    if lacking := list(_lacking(ledger, conn, _CONSUMERS)):
        return Finding.fault("grants", f"the login may not {', '.join(lacking)}", advice)
    if lacking := list(_lacking(ledger, conn, _OPERATORS)):
        said = f"the login may not {', '.join(lacking)}: enough to consume, but not to prune, replay or drop"
        return Finding.warning("grants", said, f"for operators, {advice}")
    return Finding.ok("grants", "the login may do what consumers and operators do")


def _lacking(ledger: SqlLedger, conn: Connection, wanted: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield the missing privileges; each is tried by a statement that matches no row and is rolled back."""
    store = ledger.meet()
    for name, rights in wanted.items():
        table = getattr(store.tables, name)
        quoted = store.dialect.quote(table)
        columns = ", ".join(column.name for column in table.columns)
        statements = {
            "SELECT": f"SELECT 1 FROM {quoted} WHERE 1 = 0",
            "INSERT": f"INSERT INTO {quoted} ({columns}) SELECT {columns} FROM {quoted} WHERE 1 = 0",
            "UPDATE": f"UPDATE {quoted} SET consumer_group = '' WHERE 1 = 0",
            "DELETE": f"DELETE FROM {quoted} WHERE 1 = 0",
        }
        may_select = True
        for right in rights:
            if right == "INSERT" and not may_select:
                continue  # the statement that tries INSERT contains a SELECT
            try:
                conn.execute(text(statements[right]))
            except DBAPIError as error:
                if store.dialect.refusal(driver_error(error)) is not LedgerDenied:
                    raise LedgerError(f"{right} on {table.name} failed: {type(error).__name__}") from error
                may_select = may_select and right != "SELECT"
                yield f"{right} on {table.name}"
            finally:
                conn.rollback()


def _now(ledger: SqlLedger, conn: Connection) -> datetime:
    store = ledger.meet()
    found = store.dialect.time(conn.execute(store.statements.now).scalar())
    conn.rollback()
    return found


def _durability(ledger: SqlLedger, conn: Connection) -> Finding:
    """Check whether acknowledged commits are on disk."""
    # For each database: settings, the queries that read them, and the values that mean commits may not be on disk.
    innodb = [("innodb_flush_log_at_trx_commit", "SELECT @@innodb_flush_log_at_trx_commit", {"0", "2"})]
    questions: dict[str, list[tuple[str, str, set[str]]]] = {
        "postgresql": [("fsync", "SHOW fsync", {"off"}), ("synchronous_commit", "SHOW synchronous_commit", {"off"})],
        "mysql": innodb,
        "mariadb": innodb,
        "sqlite": [("synchronous", "PRAGMA synchronous", {"0", "1"})],
    }
    weak = []
    for setting, question, bad in questions[ledger.engine.dialect.name]:
        answer = str(conn.execute(text(question)).scalar())
        if answer in bad:
            weak.append(f"{setting} is {answer}")
    conn.rollback()
    if weak:
        return Finding.warning("durability", f"{', '.join(weak)}: {_MAY_LOSE}", "turn it on where that matters")
    return Finding.ok("durability", "what is committed is on disk")
