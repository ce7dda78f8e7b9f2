"""The SQL statements of the ledger.

Values are bound parameters. A set of rows is one JSON parameter, so that a thousand rows need one statement, whose text
is always the same.
"""

from __future__ import annotations

import re

from sqlalchemy import String, TextClause, bindparam, text

from tidegate.core.journal import OPEN_FOR, WRITTEN_LATE
from tidegate.core.records import TOPIC_LENGTH
from tidegate.ledger.sql.dialect import JOURNAL, NOTE_LENGTH, Dialect
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
_OPEN = ("open_seq", "open_start", "open_end", "open_records", "open_epoch", "open_owner", "open_since")
_BUCKET = {"bucket": "bigint", "bucket_records": "bigint"}
_STEP = {"start_offset": "bigint", "end_offset": "bigint", "records": "bigint", "epoch": "bigint", "owner": "text"}
_ENTRY = {"seq": "bigint", "kind": "text", **_STEP, "commit_token": "text", "note": "note"}
_LETTER = (
    *("topic", "partition_id", "record_offset", "record_key", "record_value", "record_timestamp"),
    *("headers", "error", "attempts"),
)
_SAME_KEY = "p.consumer_group = :group AND p.topic = v.topic AND p.partition_id = v.partition_id"
# The open entry is the last entry of the row, and belongs to the same claim.
_EXTENDABLE = "p.open_seq = p.seq AND p.open_end = v.start_offset AND p.open_epoch = v.epoch AND p.open_owner = v.owner"
_NOT_OPEN = dict.fromkeys(_OPEN, "NULL")
_FILLED = {column: f"COALESCE(v.{column}, p.{column})" for column in _BUCKET}  # without a bucket, the row keeps its own


class Statements:
    """All statements of a SQL ledger, composed once for its dialect and table names."""

    def __init__(self, dialect: Dialect, tables: Tables) -> None:
        quote = dialect.quote
        positions, journal, groups = quote(tables.positions), quote(tables.journal), quote(tables.groups)
        letters, schema = quote(tables.dead_letters), quote(tables.schema)
        deployments = quote(tables.deployments)
        now = dialect.now
        keys = dialect.rows(_KEY)
        state = [f"p.{column}" for column in [*_KEY, *_STATE, *_OPEN, *_BUCKET, "updated_at"]]
        row = ", ".join(state)
        entry = ", ".join(_ENTRY)

        self.version = _statement(f"SELECT max(version) FROM {schema}")
        self.set_version = _statement(f"INSERT INTO {schema} (version) VALUES (:version)")

        # The columns of an open entry are read only for rows that have one.
        short = [f"p.{column}" for column in [*_KEY, *_STATE, "open_seq"]]
        self.lock, self.lock_whole = (
            _statement(
                f"SELECT {dialect.packed(columns)} FROM {dialect.join(keys, positions, _SAME_KEY)} "
                f"ORDER BY p.topic, p.partition_id{dialect.locking}"
            )
            for columns in (short, [*state, now])
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
        # The upper and lower halves of the offsets are summed separately, so that no sum overflows in SQLite.
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
                dialect.rows(_KEY | _STATE | _BUCKET),
                {column: f"v.{column}" for column in _STATE} | _FILLED | _NOT_OPEN | {"updated_at": now},
                _SAME_KEY,
            )
        )
        self.insert_journal = _statement(
            f"INSERT INTO {journal} (consumer_group, topic, partition_id, {entry}, at) "
            f"SELECT :group, v.topic, v.partition_id, {', '.join(f'v.{column}' for column in _ENTRY)}, {now} "
            f"FROM {dialect.rows(_KEY | _ENTRY)}"
        )
        self._advance(dialect, positions)
        self._close(dialect, positions, journal, quote(tables.history))
        self.take_back_sentinel = _statement(
            f"UPDATE {positions} SET sentinel = NULL WHERE consumer_group = :group AND topic = :first_topic "
            "AND partition_id = :first_partition AND sentinel = 1"
        )
        self._letters(dialect, letters)
        self.set_paused = _statement(
            f"UPDATE {groups} SET paused = :paused, seq = seq + 1, updated_at = {now} "
            "WHERE consumer_group = :group AND paused <> :paused"
        )
        self.journal_group = _statement(
            f"INSERT INTO {journal} (consumer_group, topic, partition_id, {entry}, at) "
            f"SELECT :group, '', -1, g.seq, :kind, 0, 0, 0, 0, NULL, NULL, :note, {now} "
            f"FROM {groups} AS g WHERE g.consumer_group = :group"
        )
        self._mark_changes(dialect, quote(tables.changes))
        self._read_journal(dialect, journal)
        self._take_turns(dialect, groups)
        self._prune(now, positions, journal, groups)
        self.now = _statement(f"SELECT {now}")
        holders = dialect.holders(positions, keys, _SAME_KEY)
        self.holders = None if holders is None else _statement(holders)

    def _letters(self, dialect: Dialect, letters: str) -> None:
        """Compose the statements about dead letters."""
        self.insert_letter = _statement(
            f"INSERT INTO {letters} (consumer_group, {', '.join(_LETTER)}, at) "
            f"VALUES (:group, {', '.join(f':{column}' for column in _LETTER)}, {dialect.now})"
        )
        self.letters = _statement(
            f"SELECT id, {', '.join(_LETTER)}, at FROM {letters} WHERE consumer_group = :group AND id > :after "
            "ORDER BY id LIMIT :limit"
        )
        self.letter_heads = _statement(
            f"SELECT id, substr(topic, 1, {TOPIC_LENGTH}), partition_id, record_offset, record_timestamp, attempts, "
            "at, substr(error, 1, :more), substr(record_key, 1, :most), length(record_key), "
            "substr(record_value, 1, :most), length(record_value), "
            "CASE WHEN length(headers) <= :most THEN headers END, length(headers) "
            f"FROM {letters} WHERE consumer_group = :group AND id > :after ORDER BY id LIMIT :limit"
        )
        self.count_letters = _statement(f"SELECT consumer_group, count(*) FROM {letters} GROUP BY consumer_group")
        self.letter_errors = _statement(
            # The limit also makes SQLite cut the errors before it groups them: it would keep all of them in memory.
            "SELECT beginning, count(*), min(id), max(id) FROM ("
            f"SELECT substr(error, 1, :most) AS beginning, id FROM {letters} WHERE consumer_group = :group "
            "ORDER BY id LIMIT 100000) AS found GROUP BY beginning ORDER BY count(*) DESC, min(id) LIMIT :limit"
        )
        this_letter = "consumer_group = :group AND id = :id"
        self.drop_letter = _statement(f"DELETE FROM {letters} WHERE {this_letter}")
        self.letter_failed = _statement(
            f"UPDATE {letters} SET attempts = attempts + 1, error = :error WHERE {this_letter}"
        )
        # A replay locks the letter first and removes it last. If the letter still points to the sentinel then, it is
        # still the same transaction.
        if dialect.layout.sentinel:
            self.hold_letter = _statement(f"UPDATE {letters} SET sentinel = 1 WHERE {this_letter} RETURNING id")
            self.remove_letter = _statement(f"DELETE FROM {letters} WHERE {this_letter} AND sentinel = 1")
        else:
            self.hold_letter = _statement(
                f"SELECT p.id FROM {letters} AS p WHERE p.consumer_group = :group AND p.id = :id{dialect.locking}"
            )
            self.remove_letter = self.drop_letter

    def _prune(self, now: str, positions: str, journal: str, groups: str) -> None:
        """Compose the statements that delete the oldest journal entries."""
        self.group_names = _statement(f"SELECT consumer_group FROM {groups}")
        self.begin_pruning = _statement(
            f"UPDATE {groups} SET pruned_at = {now} WHERE consumer_group = :group "
            f"AND (pruned_at IS NULL OR pruned_at > {now} OR pruned_at < :before)"
        )
        self.oldest_entries = _statement(
            "SELECT max(id), min(CASE WHEN at >= :cutoff THEN id END) FROM ("
            f"SELECT id, at FROM {journal} WHERE consumer_group = :group AND id > :after ORDER BY id LIMIT :limit) AS o"
        )
        # The last entry of each position and group stays; ``seq`` of its row tells which one that is.
        self.prune = _statement(
            f"DELETE FROM {journal} WHERE consumer_group = :group AND id > :after AND id <= :last AND at < :cutoff "
            f"AND seq < CASE WHEN topic = '' THEN (SELECT g.seq FROM {groups} AS g WHERE g.consumer_group = :group) "
            f"ELSE (SELECT CASE WHEN p.open_seq = p.seq THEN p.seq - 1 ELSE p.seq END FROM {positions} AS p "
            f"WHERE p.consumer_group = :group AND p.topic = {journal}.topic "
            f"AND p.partition_id = {journal}.partition_id) END"
        )

    def _advance(self, dialect: Dialect, positions: str) -> None:
        """Compose the statements around the compare-and-set, which each dialect's ``advance`` spells out.

        ``extend_one``, ``extend_many`` and ``extend_locked`` extend the open entry (the first two also open one where
        there is none), ``open`` opens a new entry, and ``cut`` and ``cut_off`` take back a part of the advance.
        """
        mine = {"open_end": "v.end_offset", "open_epoch": "v.epoch", "open_owner": "v.owner"}
        # The order matters on MySQL and MariaDB, where an assignment may see the values assigned before it; in the
        # other databases it sees the old row.
        first = "CASE WHEN p.open_seq IS NULL THEN {} ELSE {} END"
        extended = mine | {
            "open_start": first.format("v.start_offset", "p.open_start"),
            "open_records": first.format("v.records", "p.open_records + v.records"),
            "open_since": first.format(dialect.now, "p.open_since"),
            "open_seq": "COALESCE(p.open_seq, p.seq + 1)",
            "seq": "COALESCE(p.open_seq, p.seq + 1)",
        }
        young = f"p.open_since > {dialect.before(int(OPEN_FOR.total_seconds()))} AND p.open_since <= {dialect.now}"
        extendable = f"(p.open_seq IS NULL OR ({_EXTENDABLE} AND {young}))"
        self.extend_one, self.extend_many = (
            _statement(dialect.advanced(positions, rows, extended, extendable))
            for rows in (dialect.row(_KEY | _STEP), dialect.rows(_KEY | _STEP))
        )
        opened = {"open_start": "v.start_offset", "open_records": "v.records", "open_since": dialect.now}
        opened |= {"seq": "v.seq", "open_seq": "v.seq"} | {column: f"v.{column}" for column in _BUCKET}
        columns = _KEY | _STEP | {"seq": "bigint"} | _BUCKET
        self.open = _statement(dialect.advanced(positions, dialect.rows(columns), mine | opened, "TRUE"))
        # Here the caller has locked the rows and checked the entry's age.
        self.extend_locked = _statement(dialect.advanced(positions, dialect.rows(_KEY | _STEP), extended, _EXTENDABLE))
        less = {"next_offset": "v.end_offset", "open_end": "v.end_offset", "open_records": "p.open_records - v.records"}
        columns = _KEY | {column: _STEP[column] for column in ("start_offset", "end_offset", "records")}
        just_moved = f"{_SAME_KEY} AND p.next_offset = v.start_offset AND p.commit_token = :token"
        self.cut = _statement(dialect.update(positions, dialect.rows(columns), less, just_moved))
        # An entry that is empty after the cut was opened by the same transaction, so it is removed.
        nothing = f"{_SAME_KEY} AND p.open_start = p.open_end"
        self.cut_off = _statement(
            dialect.update(positions, dialect.rows(_KEY), {"seq": "p.seq - 1"} | _NOT_OPEN, nothing)
        )
        self.mark = (
            _statement(dialect.update(positions, dialect.rows(_KEY), dialect.marked(), _SAME_KEY))
            if (dialect.marked())
            else None
        )

    def _close(self, dialect: Dialect, positions: str, journal: str, history: str) -> None:
        """Compose the statements that move open entries from the rows to the journal and the coarse history."""
        last = "CASE WHEN p.open_seq = p.seq THEN {} ELSE {} END"
        closed = [
            "p.open_seq",
            "'advance'",
            *(f"p.open_{what}" for what in ("start", "end", "records", "epoch", "owner")),
        ]
        closed += [last.format("p.commit_token", "NULL"), last.format("NULL", f"'{WRITTEN_LATE}'")]
        closed += [last.format("p.updated_at", "p.open_since"), "p.open_since"]
        self.close = _statement(
            f"INSERT INTO {journal} ({JOURNAL}, since) SELECT :group, p.topic, p.partition_id, {', '.join(closed)} "
            f"FROM {dialect.join(dialect.rows(_KEY), positions, _SAME_KEY)} WHERE p.open_seq IS NOT NULL"
        )
        keys, rows = dialect.rows(_KEY), dialect.rows(_KEY | _BUCKET)
        emptied = _NOT_OPEN | _FILLED
        self.hand_over, self.hand_over_closed = (
            [_statement(sql) for sql in dialect.hand_over(positions, journal, given, _SAME_KEY, also)]
            for given, also in ((keys, {}), (rows, emptied))
        )
        self.insert_history = _statement(
            f"INSERT INTO {history} (consumer_group, topic, partition_id, bucket, records) "
            f"SELECT :group, v.topic, v.partition_id, v.bucket, v.bucket_records FROM {rows}"
        )
        self.history = _statement(
            f"SELECT bucket, sum(records) FROM {history} WHERE consumer_group = :group AND bucket >= :since "
            "GROUP BY bucket"
        )
        self.oldest_bucket = _statement(f"SELECT min(bucket) FROM {history} WHERE consumer_group = :group")
        self.prune_history = _statement(f"DELETE FROM {history} WHERE consumer_group = :group AND bucket < :before")

    def _mark_changes(self, dialect: Dialect, changes: str) -> None:
        """Compose the statements by which a retried change finds out that an earlier attempt took effect."""
        self.insert_change = _statement(f"INSERT INTO {changes} (id, at) VALUES (:id, {dialect.now})")
        # Old ids are selected first and deleted one by one, so that no DELETE waits for a change under way.
        self.old_changes = _statement(f"SELECT id FROM {changes} WHERE at < :cutoff LIMIT :limit")
        self.forget_change = _statement(f"DELETE FROM {changes} WHERE id = :id")

    def _read_journal(self, dialect: Dialect, journal: str) -> None:
        """Compose the statements that read the journal, forwards and backwards."""
        columns = dialect.packed(["topic", "partition_id", *_ENTRY, "at", "since"])
        entries = f"SELECT {columns} FROM {journal} WHERE consumer_group = :group"
        self.journal = _statement(f"{entries} ORDER BY topic, partition_id, seq")
        self.journal_of = _statement(f"{entries} AND topic = :topic AND partition_id = :partition_id ORDER BY seq")
        # Only notes that another program wrote are longer than what is read of them here.
        cut = [f"substr({column}, 1, {NOTE_LENGTH})" if column == "note" else column for column in _ENTRY]
        numbered = dialect.packed(["id", "topic", "partition_id", *cut, "at", "since"])
        newest = f"SELECT {numbered} FROM {journal} WHERE consumer_group = :group AND id < :before"
        backwards = "ORDER BY id DESC LIMIT :limit"
        self.newest = _statement(f"{newest} {backwards}")
        self.newest_of = _statement(f"{newest} AND topic = :topic AND partition_id = :partition_id {backwards}")

    def _take_turns(self, dialect: Dialect, groups: str) -> None:
        """Compose the statements that take a group's turn, and that check whether another member has it."""
        row = f"SELECT p.consumer_group FROM {groups} AS p WHERE p.consumer_group = :group"
        self.take_turn = _statement(f"{row}{dialect.if_turns_help}{dialect.locking}")
        self.find_turn = None if dialect.skip_locked is None else _statement(f"{row}{dialect.skip_locked}")


def _statement(sql: str) -> TextClause:
    """Return a statement with typed text parameters, because PostgreSQL cannot infer the type in a SELECT list."""
    named = set(re.findall(r":(group|rows|token|move|kind|note|owner|by|topic|first_topic)\b", sql))
    return text(sql).bindparams(*(bindparam(name, type_=String) for name in named))
