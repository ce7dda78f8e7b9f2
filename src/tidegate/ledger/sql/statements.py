"""The ledger's statements. Values are bound; sets of rows travel as one JSON parameter, so that a thousand rows are one
statement, and always the same one."""

from __future__ import annotations

import re

from sqlalchemy import String, TextClause, bindparam, text

from tidegate.ledger.sql.dialect import Dialect
from tidegate.ledger.sql.schema import Tables

__all__ = ["Statements"]

_KEY = {"topic": "text", "partition_id": "int"}
_STATE = {
    "next_offset": "bigint",
    "epoch": "bigint",
    "owner": "text",
    "commit_token": "text",
    "seq": "bigint",
    "cluster_id": "text",
    "topic_id": "text",
    "deployment": "text",
}
_STEP = {"start_offset": "bigint", "end_offset": "bigint", "records": "bigint", "epoch": "bigint", "owner": "text"}
_ENTRY = {"seq": "bigint", "kind": "text", **_STEP, "commit_token": "text", "note": "note"}
_LETTER = (
    *("topic", "partition_id", "record_offset", "record_key", "record_value", "record_timestamp"),
    *("headers", "error", "attempts"),
)
_SAME_KEY = "p.consumer_group = :group AND p.topic = v.topic AND p.partition_id = v.partition_id"


class Statements:
    """Every statement of a SQL ledger, composed once for its dialect and its table names."""

    def __init__(self, dialect: Dialect, tables: Tables) -> None:
        quote = dialect.quote
        positions, journal, groups = quote(tables.positions), quote(tables.journal), quote(tables.groups)
        letters, schema = quote(tables.dead_letters), quote(tables.schema)
        deployments = quote(tables.deployments)
        now = dialect.now
        keys = dialect.rows(_KEY)
        state = [f"p.{column}" for column in [*_KEY, *_STATE]]
        row = ", ".join([*state, "p.updated_at"])
        entry = ", ".join(_ENTRY)

        self.version = _statement(f"SELECT max(version) FROM {schema}")
        self.set_version = _statement(f"INSERT INTO {schema} (version) VALUES (:version)")

        self.lock = _statement(
            f"SELECT {dialect.packed(state)} FROM {dialect.join(keys, positions, _SAME_KEY)} "
            f"ORDER BY p.topic, p.partition_id{dialect.locking}"
        )
        self.lock_only = _statement(
            f"SELECT count(*) FROM (SELECT 1 FROM {dialect.join(keys, positions, _SAME_KEY)} "
            f"ORDER BY p.topic, p.partition_id{dialect.locking}) AS locked"
        )
        self.read = _statement(
            f"SELECT v.topic, v.partition_id, g.paused, {row} FROM {keys} "
            f"LEFT JOIN {positions} AS p ON {_SAME_KEY} LEFT JOIN {groups} AS g ON g.consumer_group = :group"
        )
        self.read_group = _statement(
            f"SELECT NULL, NULL, g.paused, {row} FROM (SELECT 1 AS one) AS o "
            f"LEFT JOIN {groups} AS g ON g.consumer_group = :group "
            f"LEFT JOIN {positions} AS p ON p.consumer_group = :group"
        )
        self.read_all = _statement(
            f"SELECT g.consumer_group, NULL, g.paused, {row} FROM {groups} AS g "
            f"LEFT JOIN {positions} AS p ON p.consumer_group = g.consumer_group"
        )
        # The halves of the offsets are added up on their own, so that no sum is too large for SQLite.
        self.totals = _statement(
            "SELECT g.consumer_group, g.paused, p.topic, count(p.topic), count(p.owner), sum(p.next_offset >> 32), "
            f"sum(p.next_offset & 4294967295), max(p.updated_at) FROM {groups} AS g "
            f"LEFT JOIN {positions} AS p ON p.consumer_group = g.consumer_group "
            "GROUP BY g.consumer_group, g.paused, p.topic"
        )
        self.insert_group = _statement(
            f"INSERT INTO {groups} (consumer_group, paused, seq, updated_at) "
            f"SELECT :group, FALSE, 0, {now} FROM (SELECT 1 AS one) AS o "
            f"WHERE NOT EXISTS (SELECT 1 FROM {groups} AS g WHERE g.consumer_group = :group)"
        )
        self.insert_positions = _statement(
            f"INSERT INTO {positions} (consumer_group, {', '.join([*_KEY, *_STATE])}, updated_at) "
            f"SELECT :group, {', '.join(f'v.{column}' for column in [*_KEY, *_STATE])}, {now} "
            f"FROM {dialect.rows(_KEY | _STATE)}"
        )
        self.deployments = _statement(
            f"SELECT topic FROM {deployments} WHERE consumer_group = :group AND deployment = :deployment"
        )
        self.insert_deployment = _statement(
            f"INSERT INTO {deployments} (consumer_group, topic, deployment, at) "
            f"VALUES (:group, :topic, :deployment, {now})"
        )
        self.adopt_deployments = _statement(
            f"INSERT INTO {deployments} (consumer_group, topic, deployment, at) "
            f"SELECT p.consumer_group, p.topic, p.deployment, max(p.updated_at) FROM {positions} AS p "
            "WHERE p.deployment IS NOT NULL "
            f"AND NOT EXISTS (SELECT 1 FROM {deployments} AS d WHERE d.consumer_group = p.consumer_group "
            "AND d.topic = p.topic AND d.deployment = p.deployment) "
            "GROUP BY p.consumer_group, p.topic, p.deployment"
        )
        self.update_positions = _statement(
            dialect.update(
                positions,
                dialect.rows(_KEY | _STATE),
                {column: f"v.{column}" for column in _STATE} | {"updated_at": now},
                _SAME_KEY,
            )
        )
        self.insert_journal = _statement(
            f"INSERT INTO {journal} (consumer_group, topic, partition_id, {entry}, at) "
            f"SELECT :group, v.topic, v.partition_id, {', '.join(f'v.{column}' for column in _ENTRY)}, {now} "
            f"FROM {dialect.rows(_KEY | _ENTRY)}"
        )
        one, many = dialect.row(_KEY | _STEP), dialect.rows(_KEY | _STEP)
        self.advance_one = [_statement(sql) for sql in dialect.advance(positions, journal, one, _SAME_KEY)]
        self.advance_many = [_statement(sql) for sql in dialect.advance(positions, journal, many, _SAME_KEY)]
        self.hand_over = [_statement(sql) for sql in dialect.hand_over(positions, journal, keys, _SAME_KEY)]
        self.take_back_sentinel = _statement(
            f"UPDATE {positions} SET sentinel = NULL WHERE consumer_group = :group AND topic = :first_topic "
            "AND partition_id = :first_partition AND sentinel = 1"
        )
        self.insert_letter = _statement(
            f"INSERT INTO {letters} (consumer_group, {', '.join(_LETTER)}, at) "
            f"VALUES (:group, {', '.join(f':{column}' for column in _LETTER)}, {now})"
        )
        self.letters = _statement(
            f"SELECT id, {', '.join(_LETTER)}, at FROM {letters} WHERE consumer_group = :group AND id > :after "
            "ORDER BY id LIMIT :limit"
        )
        this_letter = "consumer_group = :group AND id = :id"
        self.drop_letter = _statement(f"DELETE FROM {letters} WHERE {this_letter}")
        self.letter_failed = _statement(
            f"UPDATE {letters} SET attempts = attempts + 1, error = :error WHERE {this_letter}"
        )
        # A letter that is replayed is locked first and removed last: that it still points to the sentinel shows that
        # it is the same transaction.
        if dialect.layout.sentinel:
            self.hold_letter = _statement(f"UPDATE {letters} SET sentinel = 1 WHERE {this_letter} RETURNING id")
            self.remove_letter = _statement(f"DELETE FROM {letters} WHERE {this_letter} AND sentinel = 1")
        else:
            self.hold_letter = _statement(
                f"SELECT p.id FROM {letters} AS p WHERE p.consumer_group = :group AND p.id = :id{dialect.locking}"
            )
            self.remove_letter = self.drop_letter

        self.set_paused = _statement(
            f"UPDATE {groups} SET paused = :paused, seq = seq + 1, updated_at = {now} "
            "WHERE consumer_group = :group AND paused <> :paused"
        )
        self.journal_group = _statement(
            f"INSERT INTO {journal} (consumer_group, topic, partition_id, {entry}, at) "
            f"SELECT :group, '', -1, g.seq, :kind, 0, 0, 0, 0, NULL, NULL, :note, {now} "
            f"FROM {groups} AS g WHERE g.consumer_group = :group"
        )
        self._read_journal(dialect, journal)
        self.group_names = _statement(f"SELECT consumer_group FROM {groups}")
        self.oldest_entries = _statement(
            "SELECT max(id), min(CASE WHEN at >= :cutoff THEN id END) FROM ("
            f"SELECT id, at FROM {journal} WHERE consumer_group = :group AND id > :after ORDER BY id LIMIT :limit) AS o"
        )
        # The counters of the rows say which entries are the last ones: those stay.
        self.prune = _statement(
            f"DELETE FROM {journal} WHERE consumer_group = :group AND id > :after AND id <= :last AND at < :cutoff "
            f"AND seq < CASE WHEN topic = '' THEN (SELECT g.seq FROM {groups} AS g WHERE g.consumer_group = :group) "
            f"ELSE (SELECT p.seq FROM {positions} AS p WHERE p.consumer_group = :group AND p.topic = {journal}.topic "
            f"AND p.partition_id = {journal}.partition_id) END"
        )
        self.now = _statement(f"SELECT {now}")
        holders = dialect.holders(positions, keys, _SAME_KEY)
        self.holders = None if holders is None else _statement(holders)

    def _read_journal(self, dialect: Dialect, journal: str) -> None:
        """The statements that read the journal, forwards and backwards."""
        columns = dialect.packed(["topic", "partition_id", *_ENTRY, "at"])
        entries = f"SELECT {columns} FROM {journal} WHERE consumer_group = :group"
        self.history = _statement(f"{entries} ORDER BY id")
        self.journal = _statement(f"{entries} ORDER BY topic, partition_id, seq")
        self.journal_of = _statement(f"{entries} AND topic = :topic AND partition_id = :partition_id ORDER BY id")
        numbered = dialect.packed(["id", "topic", "partition_id", *_ENTRY, "at"])
        newest = f"SELECT {numbered} FROM {journal} WHERE consumer_group = :group AND id < :before"
        backwards = "ORDER BY id DESC LIMIT :limit"
        self.newest = _statement(f"{newest} {backwards}")
        self.newest_of = _statement(f"{newest} AND topic = :topic AND partition_id = :partition_id {backwards}")


def _statement(sql: str) -> TextClause:
    """A statement whose text parameters say that they are text: PostgreSQL cannot tell in a SELECT list."""
    named = set(re.findall(r":(group|rows|token|move|kind|note|owner|by|topic|first_topic)\b", sql))
    return text(sql).bindparams(*(bindparam(name, type_=String) for name in named))
