"""Facts about tables of PostgreSQL, from the catalogs: keys, constraints, triggers and rules; and their shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, text

from tidegate.errors import ConfigurationError
from tidegate.tables.checks import problems_of
from tidegate.tables.column import Column
from tidegate.tables.layout import Facts, Order, UniqueIndex, key_of
from tidegate.tables.links import Links
from tidegate.tables.names import Names
from tidegate.tables.rights import denied, rights_of
from tidegate.tables.table import Mode, Table
from tidegate.tables.types import TypeName
from tidegate.tables.values import array_of_texts

__all__ = ["postgres_facts", "postgres_links", "postgres_shapes"]


_NAMES = Names('"')


def _parts_of(children: str) -> str:
    """Return a WITH clause that lists the table, its partitions, and the tables behind a view, as ``part``.

    ``children`` is an SQL condition: whether to include tables that inherit from it.
    """
    return f"""
WITH RECURSIVE part(oid) AS (
    SELECT to_regclass(:name)::oid
    UNION
    SELECT next.oid FROM part, LATERAL (
        SELECT i.inhrelid AS oid FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent
        WHERE i.inhparent = part.oid AND (p.relkind = 'p' OR {children})
        UNION ALL
        SELECT d.refobjid FROM pg_rewrite w JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid
        WHERE w.ev_class = part.oid AND w.ev_type = '1' AND d.refclassid = 'pg_class'::regclass
    ) AS next
)"""


# Built-in functions that read tables. Only the text of an expression shows them: pg_depend has no built-in objects.
_READERS = "(_to_xml|ts_stat|ts_rewrite|pg_[a-z_]+_size|pg_stat_get_)[a-z_]*[(]"


def _reads(catalog: str, oid: str, expression: str, *trusted: str) -> str:
    """Return an SQL condition: whether the expression of a catalog entry calls a function that may read other rows.

    ``expression`` is the SQL for its text. Functions in a ``trusted`` language are assumed not to read rows.
    """
    languages = ", ".join(f"'{language}'" for language in ("", *trusted))
    return f"""({expression} ~ '{_READERS}' OR EXISTS (
        SELECT FROM pg_depend d LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
        JOIN pg_proc p ON p.oid = CASE d.refclassid WHEN 'pg_proc'::regclass THEN d.refobjid ELSE o.oprcode END
        JOIN pg_language l ON l.oid = p.prolang AND l.lanname NOT IN ({languages})
        WHERE d.classid = '{catalog}'::regclass AND d.objid = {oid} AND p.provolatile <> 'i'
        AND p.pronamespace <> 'pg_catalog'::regnamespace))"""


# Bits of tgtype: 1 FOR EACH ROW, 2 BEFORE, 4 | 8 | 16 INSERT, DELETE, UPDATE. A BEFORE trigger sees the earlier rows of
# its statement if its function is volatile; otherwise it sees a snapshot from the start of the statement. A row must
# fit into a page; a value of variable length takes up to 24 bytes of it, since longer values are stored elsewhere,
# unless their storage is plain. An index entry holds about 2,700 bytes. In a unique index, only the INCLUDE columns
# count: the others are equal in all rows of a key. A foreign key to a partitioned table that the table is a partition
# of is one to the table itself. Foreign keys are checked at the end of a statement.
_TABLE = text(
    f"""{_parts_of("CAST(:children AS boolean)")},
above(oid) AS (
    SELECT oid FROM part
    UNION
    SELECT i.inhparent FROM above JOIN pg_inherits i ON i.inhrelid = above.oid
        JOIN pg_class p ON p.oid = i.inhparent AND p.relkind = 'p'
),
live AS (
    SELECT t.tgtype & 3 = 3 AS before, t.tgtype & 3 = 3 AND p.provolatile = 'v' AS by_row
    FROM part JOIN pg_trigger t ON t.tgrelid = part.oid JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 28 <> 0
),
rule AS (
    SELECT w.ev_type FROM part JOIN pg_rewrite w ON w.ev_class = part.oid
    WHERE w.ev_type <> '1' AND w.ev_enabled <> 'D'
),
bound AS (
    SELECT k.oid, k.conname, k.connamespace, k.contype, k.condeferrable, k.conrelid IN (SELECT oid FROM part) AS own,
        k.confrelid IN (SELECT oid FROM above) AS referred
    FROM pg_constraint k
    WHERE k.conrelid IN (SELECT oid FROM part) OR k.confrelid IN (SELECT oid FROM part)
),
indexed AS (
    SELECT i.indexprs IS NOT NULL OR i.indpred IS NOT NULL OR (
        SELECT bool_or(a.atttypmod < 0 OR a.atttypid <> ALL ('{{numeric,varchar,bpchar,bit,varbit}}'::regtype[]))
            OR sum(CASE a.atttypid WHEN 'numeric'::regtype THEN a.atttypmod >> 17 ELSE 4::bigint * a.atttypmod END)
                > 2400
        FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attlen = -1
        AND a.attnum = ANY ((i.indkey::int2[])[CASE WHEN i.indisunique THEN i.indnkeyatts ELSE 0 END:])) AS may_fail
    FROM part JOIN pg_index i ON i.indrelid = part.oid
),
owned AS (
    SELECT a.attname, a.attrelid, a.attgenerated, a.attidentity, a.attidentity <> '' OR EXISTS (
        SELECT FROM pg_attrdef d WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum
        AND pg_get_expr(d.adbin, d.adrelid) LIKE '%nextval(%') AS numbered
    FROM part JOIN pg_attribute a ON a.attrelid = part.oid
    WHERE a.attnum > 0 AND NOT a.attisdropped AND (a.atthasdef OR a.attidentity <> '')
)
SELECT c.oid, c.relkind, c.relpersistence, row_security_active(c.oid) AS secured, getdatabaseencoding() AS encoding,
    current_setting('client_encoding') AS client_encoding, current_setting('array_nulls')::boolean AS array_nulls,
    pg_relation_is_updatable(c.oid, true) & 8 <> 0 AS insertable,
    (SELECT string_agg(f.relname, ', ') FROM part JOIN pg_class f USING (oid) WHERE f.relkind = 'f') AS foreign_tables,
    c.relispartition OR (SELECT count(*) FROM part) > 1 AS in_parts,
    EXISTS (SELECT FROM live) AS triggers, EXISTS (SELECT FROM live WHERE before) AS before_triggers,
    EXISTS (SELECT FROM live WHERE NOT by_row) AS statement_triggers,
    EXISTS (SELECT FROM rule) AS rules,
    EXISTS (SELECT FROM rule WHERE ev_type IN ('2', '3')) AS writing_rules,
    EXISTS (SELECT FROM bound WHERE contype IN ('c', 'f', 'x')) AS constraints,
    EXISTS (SELECT FROM bound WHERE contype = 'f' AND own AND referred) AS refers_to_itself,
    EXISTS (SELECT FROM bound WHERE contype = 'f') AS foreign_keys,
    EXISTS (SELECT FROM bound WHERE contype IN ('p', 'u', 'x') AND own AND condeferrable) AS deferrable,
    (SELECT string_agg(DISTINCT format('%I.%I', s.nspname, conname), ', ')
        FROM bound JOIN pg_namespace s ON s.oid = connamespace WHERE condeferrable) AS deferred,
    EXISTS (SELECT FROM bound WHERE contype = 'c'
        AND {_reads("pg_constraint", "bound.oid", "pg_get_constraintdef(bound.oid)")}) AS reading_checks,
    EXISTS (SELECT FROM part JOIN pg_attrdef f ON f.adrelid = part.oid JOIN pg_attribute a ON a.attrelid = part.oid
        AND a.attnum = f.adnum AND a.attname <> ALL (CAST(:key AS text[]))
        WHERE {_reads("pg_attrdef", "f.oid", "pg_get_expr(f.adbin, f.adrelid)", "c")})
        AS reading_defaults,
    c.relkind = 'v' AND EXISTS (
        SELECT FROM part JOIN pg_class v USING (oid) LEFT JOIN pg_rewrite w ON w.ev_class = v.oid
        WHERE v.relrowsecurity OR v.reloptions::text LIKE '%check_option%'
        OR {_reads("pg_rewrite", "w.oid", "pg_get_viewdef(v.oid)")}
    ) AS reading_views,
    EXISTS (SELECT FROM part JOIN pg_attribute a ON a.attrelid = part.oid WHERE a.attnum > 0 AND NOT a.attisdropped
        GROUP BY part.oid HAVING bool_or(a.attlen < 0 AND a.attstorage = 'p')
        OR sum(CASE WHEN a.attlen < 0 THEN 24 ELSE (a.attlen + 7) / 8 * 8 END) > 7500) AS outgrows_page,
    EXISTS (SELECT FROM indexed WHERE may_fail) AS failing_indexes,
    EXISTS (SELECT FROM owned WHERE attgenerated <> '') AS generates,
    ARRAY(SELECT CASE WHEN attrelid = c.oid THEN attname::text ELSE '' END FROM owned WHERE numbered) AS numbered,
    ARRAY(SELECT attname::text FROM owned WHERE attrelid = c.oid AND attidentity = 'a') AS always_numbered,
    ARRAY(SELECT wanted FROM unnest(CAST(:rights AS text[])) AS wanted WHERE NOT (has_table_privilege(c.oid, wanted)
        OR (wanted <> 'DELETE' AND has_any_column_privilege(c.oid, wanted)))) AS missing_rights,
    current_user AS login
FROM pg_class c WHERE c.oid = to_regclass(:name)"""
)
_COLUMN_FACTS = text(
    """
WITH RECURSIVE typed AS (
    SELECT attname, attcollation, atttypid AS typid, atttypmod AS typmod, false AS checked, atttypid >= 16384 AS is_own,
        CASE WHEN attgenerated = '' THEN coalesce(pg_get_expr(adbin, adrelid), typdefault) END AS filled_with
    FROM pg_attribute JOIN pg_type t ON t.oid = atttypid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE attrelid = :oid AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT attname, attcollation, t.typbasetype, t.typtypmod,
        checked OR EXISTS (SELECT FROM pg_constraint k WHERE k.contypid = t.oid AND k.contype = 'c'),
        is_own, filled_with
    FROM typed JOIN pg_type t ON t.oid = typed.typid AND t.typtype = 'd'
)
SELECT attname, attcollation, checked, is_own, filled_with, t.typname, t.typtype, t.typcollation,
    t.typnamespace = 'pg_catalog'::regnamespace AS built_in, coalesce(k.collisdeterministic, true) AS deterministic,
    -- A cast to varchar(3) cuts what an assignment refuses; one to time(3) rounds what an assignment rounds too.
    format_type(typid, CASE WHEN coalesce(nullif(t.typelem, 0), typid) = ANY
        ('{varchar,bpchar,bit,varbit}'::regtype[]) THEN -1 ELSE typmod END) AS spelled
FROM typed JOIN pg_type t ON t.oid = typid AND t.typtype <> 'd' LEFT JOIN pg_collation k ON k.oid = attcollation"""
)
# The types of the columns, and the types within them: domains, elements of arrays, fields of composites.
_KINDS = text(
    f"""
WITH RECURSIVE kind(oid) AS (
    SELECT atttypid FROM pg_attribute WHERE attrelid = :oid AND attnum > 0 AND NOT attisdropped AND atttypid >= 16384
    UNION
    SELECT part.oid FROM kind JOIN pg_type t USING (oid) CROSS JOIN LATERAL (
        SELECT t.typbasetype AS oid UNION ALL SELECT t.typelem
        UNION ALL SELECT atttypid FROM pg_attribute WHERE attrelid = t.typrelid AND attnum > 0
    ) AS part WHERE part.oid >= 16384
)
SELECT EXISTS (SELECT FROM kind JOIN pg_constraint k ON k.contypid = kind.oid
    WHERE {_reads("pg_constraint", "k.oid", "pg_get_constraintdef(k.oid)")}) AS reading_checks,
    EXISTS (SELECT FROM kind JOIN pg_type t USING (oid)
    WHERE t.typtype = 'd' AND {_reads("pg_type", "t.oid", "t.typdefault", "c")}) AS reading_defaults"""
)
_INDEXES = text(
    """
SELECT c.relname, i.indisvalid, i.indimmediate, i.indpred IS NOT NULL AS partial, i.indisexclusion,
    coalesce(a.attname, '') AS attname, i.indcollation[n] AS collation, coalesce(k.collisdeterministic, true)
    AS deterministic, quote_ident(s.nspname) || '.' || quote_ident(k.collname) AS collated,
    o.opcdefault OR o.opcname LIKE '%pattern\\_ops' AS usual
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid CROSS JOIN generate_series(0, i.indnkeyatts - 1) AS n
    JOIN pg_opclass o ON o.oid = i.indclass[n]
    LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[n] AND a.attnum <> 0
    LEFT JOIN pg_collation k ON k.oid = i.indcollation[n] LEFT JOIN pg_namespace s ON s.oid = k.collnamespace
WHERE i.indrelid = :oid AND i.indisunique
ORDER BY i.indisprimary DESC, c.relname, n"""
)
_TEXTS = frozenset({"text", "varchar", "bpchar", "citext"})
_SETTLED = _TEXTS | {"bool", "int2", "int4", "int8", "float4", "float8", "numeric", "uuid", "bytea", "date"}
_SETTLED |= {"timestamp", "timestamptz", "json", "jsonb"}
_NULL = re.compile(r"NULL(::[^']*)?")
_STEADY = re.compile(
    r"true|false|SESSION_USER|(CURRENT_(USER|ROLE|DATE|TIME|TIMESTAMP)|LOCALTIME(STAMP)?)(\(\d\))?"
    r"|(now|(transaction|statement|clock)_timestamp)\(\)|(\w+\.)?(gen_random_uuid|uuidv[47]|uuid_generate_v[14])\(\)"
    r"|\(now\(\) AT TIME ZONE '(?i:utc)'::text\)|timezone\('(?i:utc)'::text, now\(\)\)|nextval\('[^']+'::regclass\)"
)
_LITERAL = re.compile(r"(E?'(?P<text>([^']|'')*)'|\(?(?P<number>-?[0-9.]+)\)?)(::(?P<type>[^':]+))?")
_EXACT = frozenset({"bool", "int2", "int4", "int8", "bytea", "date", "timestamp", "timestamptz", "uuid"})


_LINKS = text(
    """
SELECT k.conrelid = c.oid AS own, s.nspname, r.relname,
    k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd') AS acts
FROM pg_class c JOIN pg_constraint k ON k.contype = 'f' AND c.oid IN (k.conrelid, k.confrelid)
    JOIN pg_class r ON r.oid = CASE WHEN k.conrelid = c.oid THEN k.confrelid ELSE k.conrelid END
    JOIN pg_namespace s ON s.oid = r.relnamespace
WHERE c.oid = to_regclass(:name)"""
)
_LINKED = text(
    """
SELECT s.nspname, c.relname,
    EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled <> 'D')
    OR EXISTS (SELECT FROM pg_rewrite w WHERE w.ev_class = c.oid AND (w.ev_type <> '1' OR c.relkind = 'v')) AS acts
FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace WHERE c.oid = to_regclass(:name)"""
)


def postgres_links(conn: Connection, table: Table) -> Links | None:
    """Return the tables that foreign keys link to a table, and whether writing to it may change other tables."""
    asked = {"name": _NAMES.table(table)}
    found = conn.execute(_LINKED, asked).one_or_none()
    if found is None:
        return None
    rows = conn.execute(_LINKS, asked).all()
    return Links(
        (found.nspname, found.relname),
        parents=frozenset((row.nspname, row.relname) for row in rows if row.own),
        children=frozenset((row.nspname, row.relname) for row in rows if not row.own),
        acts=found.acts or any(row.acts for row in rows),
    )


def postgres_facts(conn: Connection, table: Table, columns: Sequence[Column]) -> Facts:
    """Return the facts about a table, from the catalogs; raise if rows cannot be written to it unchanged."""
    always = () if table.kind is Mode.APPEND else table.key  # every record has a value for it, so its default is unused
    asked = {
        "name": _NAMES.table(table),
        "rights": list(rights_of(table)),
        "key": list(always),
        "children": table.kind is Mode.UPDATE or table.deletes,  # UPDATE and DELETE affect rows of child tables too
    }
    found = conn.execute(_TABLE, asked).one()
    _refuse(table, found)
    if found.missing_rights:
        raise denied(table, found.missing_rights, _NAMES, _NAMES.quote(found.login))
    types = {row.attname: row for row in conn.execute(_COLUMN_FACTS, {"oid": found.oid})}
    indexes = _indexes(conn.execute(_INDEXES, {"oid": found.oid}).all(), types, columns)
    key = key_of(table, indexes)
    if key and (late := [index for index in indexes if "deferrable" in index.unfit and _same(index, table)]):
        raise ConfigurationError(
            f"table {table}: beside the index {key[0].name!r} there is {late[0].name!r} on the same columns, which "
            f"{late[0].unfit}: PostgreSQL cannot upsert then; drop one of them"
        )
    unsettled = frozenset(name for name, row in types.items() if not _is_settled(row, found.encoding))
    # Folding key columns need no check here: all keys are cast to compare them, even those of rows that are merged
    # away, so an invalid key fails then. And of keys that are equal, either all fit or none.
    cast = {name for index in key for name in index.folding if not types[name].checked}
    written = {column.name for column in columns if not column.generated}
    reads = fills_by_reading = False
    if any(row.is_own for row in types.values()):
        reads, fills_by_reading = conn.execute(_KINDS, {"oid": found.oid}).one()
    may_fail = bool((unsettled & written) - cast)
    if table.kind is not Mode.UPDATE:
        reads |= fills_by_reading or found.reading_defaults
        filled = (column for column in columns if column.name not in always)
        may_fail |= not all(_is_harmless(types[column.name].filled_with, column) for column in filled)
    return Facts(
        _order(table, found, indexes, key, reads=reads, may_fail=may_fail),
        is_numbered=any(table.kind is Mode.APPEND or name not in table.key for name in found.numbered),
        counted=frozenset(found.numbered).intersection(name for index in indexes for name in index.columns)
        - set(always),
        takes_bulk=found.relkind != "v" and not found.secured and not found.rules,
        folding={name: compared for index in key for name, compared in index.folding.items()},
        reserved=_reserved(table, found.always_numbered),
        unsettled=unsettled,
        fills_nulls=found.before_triggers,
        deferred=found.deferred or "",
        warning=_UNLOGGED.format(table, _NAMES.table(table)) if found.relpersistence == "u" else "",
    )


def _refuse(table: Table, found: Any) -> None:
    """Raise if the table takes no rows in this mode, or if the session's settings would change values."""
    if found.client_encoding != "UTF8":
        raise ConfigurationError(
            f"table {table}: client_encoding is {found.client_encoding} in the sessions of this login, which does not "
            "have every character; add client_encoding=utf8 to the URL"
        )
    if not found.array_nulls:
        raise ConfigurationError(
            f"table {table}: array_nulls is off in the sessions of this login, so that NULL in an array would become a "
            "text; set it on"
        )
    if found.foreign_tables:
        raise ConfigurationError(
            f"table {table}: {found.foreign_tables} is a foreign table, whose rows do not commit together with the "
            "position; write into a table of this database"
        )
    if found.relkind == "v" and table.kind is not Mode.APPEND:
        raise ConfigurationError(
            f"table {table} is a view, and mode {table.kind.value!r} needs the unique index of a table; name the table "
            "that the view shows, or use mode='append'"
        )
    if not found.insertable:
        kind = {"v": "a view that cannot be inserted into", "m": "a materialized view"}.get(found.relkind)
        raise ConfigurationError(f"table {table} is {kind or 'not one that takes rows'}; name a table")
    if found.writing_rules and table.kind not in (Mode.APPEND, Mode.UPDATE):
        raise ConfigurationError(
            f"table {table} has rules, with which PostgreSQL has no ON CONFLICT for mode {table.kind.value!r}; make "
            "triggers of them, or use mode='append'"
        )


def _reserved(table: Table, names: Sequence[str]) -> Mapping[str, str]:
    """Return the columns that only the database numbers; raise if the mode has to insert the key into one of them.

    Mode update only compares the key.
    """
    if table.kind is Mode.UPDATE:
        names = [name for name in names if name not in table.key]
    elif table.kind is not Mode.APPEND and (clash := [name for name in names if name in table.key]):
        raise ConfigurationError(
            f"table {table}: column {clash[0]!r} of the key is {_ALWAYS}; mode {table.kind.value!r} has to insert it: "
            "make it GENERATED BY DEFAULT"
        )
    return dict.fromkeys(names, _ALWAYS)


_ALWAYS = "an identity column GENERATED ALWAYS, which only the database numbers"


def _indexes(rows: Sequence[Any], types: Mapping[str, Any], columns: Sequence[Column]) -> list[UniqueIndex]:
    unbounded = {column.name for column in columns if column.is_unbounded}
    found = []
    for name, parts in groupby(rows, attrgetter("relname")):
        members = list(parts)
        first = members[0]
        reasons = {
            "is not valid": not first.indisvalid,
            "is deferrable": not first.indimmediate,
            "is partial": first.partial,
            "is on an expression": any(not member.attname for member in members),
            "is an exclusion constraint": first.indisexclusion,
        }
        folding = {
            member.attname: compared
            for member in members
            if member.attname
            and (compared := _folding(types[member.attname], member, is_unbounded=member.attname in unbounded))
        }
        found.append(
            UniqueIndex(
                name,
                tuple(member.attname for member in members),
                next((reason for reason, holds in reasons.items() if holds), ""),
                folding,
                is_foreign=not all(member.usual for member in members),
            )
        )
    return found


def _folding(kind: Any, member: Any, *, is_unbounded: bool) -> str:
    """Return the cast to what the index compares; empty if it considers the same values equal as Python does."""
    plain = kind.deterministic and member.deterministic
    if kind.built_in and plain and kind.typname in ("text", "varchar"):
        return ""
    if kind.typtype == "e" or (kind.built_in and kind.typname in _EXACT):
        return ""
    if kind.built_in and kind.typname == "numeric" and not is_unbounded:
        return ""
    collated = member.collation and member.collation != kind.typcollation
    spelled = "text" if kind.built_in and kind.typname == "varchar" else kind.spelled
    return f"::{spelled}" + (f" COLLATE {member.collated}" if collated else "")


def _is_settled(kind: Any, encoding: str) -> bool:
    if kind.checked:
        return False
    if kind.typname in _TEXTS:
        return (kind.built_in or kind.typname == "citext") and encoding in ("UTF8", "SQL_ASCII")
    if kind.built_in and kind.typname in ("json", "jsonb"):
        return bool(encoding == "UTF8")  # others do not have every character that JSON may escape
    return kind.typtype == "e" or (kind.built_in and kind.typname in _SETTLED)


def _is_harmless(default: str | None, column: Column) -> bool:
    """Whether a default expression is known never to fail for this column."""
    if default is None:
        return True
    if _NULL.fullmatch(default):
        return column.nullable
    if _STEADY.fullmatch(default):
        return column.length is None
    literal = _LITERAL.fullmatch(default)
    if literal is None:
        return False
    if column.type.is_numeric or column.length is not None:
        made = array_of_texts([literal["text"] or literal["number"]], column)
        return not made.problems and not problems_of(made.array, column)
    return column.type.name is not TypeName.JSON or literal["type"] == column.sql_type


def _order(
    table: Table,
    found: Any,
    indexes: Sequence[UniqueIndex],
    key: Sequence[UniqueIndex],
    *,
    reads: bool,
    may_fail: bool,
) -> Order:
    """Return in which order rows must be written.

    ``reads``: a default or the check of a domain may read other rows. ``may_fail``: a default or a value may not fit.
    """
    late = found.deferrable and table.kind is not Mode.APPEND
    reads |= found.refers_to_itself or found.reading_checks or found.reading_views or found.secured
    helped = found.foreign_keys and found.before_triggers  # a trigger may write what an earlier row refers to
    if found.statement_triggers or found.rules or reads or late or helped:
        return Order.SINGLE
    if any(index.is_foreign for index in key):
        return Order.SINGLE
    bound = found.triggers or found.constraints or found.generates or found.failing_indexes or found.outgrows_page
    if bound or may_fail or found.in_parts or len(indexes) > len(key):
        return Order.KEPT
    return Order.FREE


def _same(index: UniqueIndex, table: Table) -> bool:
    return set(index.columns) == set(table.key)


_UNLOGGED = (
    "table {} is UNLOGGED: a crash of the server empties it, while the position stays; run ALTER TABLE {} SET LOGGED"
)


# Without inheriting children: a trigger or extension may create one for the rows of the current transaction.
_PART_SHAPE = """concat_ws(' ', c.oid, c.relkind, c.relpersistence, c.relrowsecurity, c.relforcerowsecurity,
    c.relchecks, c.relispartition, c.reloptions,
    CASE WHEN c.relhasindex THEN (SELECT 'i ' || string_agg(concat_ws(' ', indexrelid, indisvalid, indimmediate), ' '
        ORDER BY indexrelid) FROM pg_index WHERE indrelid = c.oid) END,
    CASE WHEN c.relhastriggers THEN (SELECT 't ' || string_agg(concat(oid, tgenabled, tginitdeferred), ' '
        ORDER BY oid) FROM pg_trigger WHERE tgrelid = c.oid) END,
    CASE WHEN c.relhasrules THEN (SELECT 'r ' || string_agg(concat(oid, ev_enabled), ' ' ORDER BY oid)
        FROM pg_rewrite WHERE ev_class = c.oid) END)"""
# Ids from 16384 on belong to user-defined types: domains and enums, which may be altered, and what is made of them.
_TYPE_SHAPE = """WITH RECURSIVE chain (type) AS (
        SELECT atttypid
        UNION SELECT CASE typtype WHEN 'd' THEN typbasetype ELSE typelem END FROM chain JOIN pg_type ON oid = type
        WHERE typtype = 'd' OR (typcategory = 'A' AND typelem <> 0)
    )
    SELECT string_agg(concat_ws(' ', oid, typnotnull, typdefault,
        (SELECT array_agg(enumlabel ORDER BY enumsortorder)::text FROM pg_enum WHERE enumtypid = type),
        (SELECT string_agg(k.oid::text, ' ' ORDER BY k.oid) FROM pg_constraint k WHERE k.contypid = type)),
        ', ' ORDER BY oid)
    FROM chain JOIN pg_type ON oid = type WHERE type >= 16384"""
_SHAPE = f"""
SELECT concat_ws(' ', {_PART_SHAPE},
    (SELECT 'd ' || string_agg(oid::text, ' ' ORDER BY adnum) FROM pg_attrdef WHERE adrelid = c.oid),
    (SELECT 'c ' || string_agg(concat_ws(' ', attname, atttypid, atttypmod, attcollation, attnotnull, attgenerated,
        attidentity, attstorage, CASE WHEN atttypid >= 16384 THEN ({_TYPE_SHAPE}) END), ', ' ORDER BY attnum)
        FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
    CASE WHEN c.relkind IN ('p', 'v') THEN (
        {_parts_of("false")}
        SELECT string_agg({_PART_SHAPE}, ', ' ORDER BY c.oid) FROM part JOIN pg_class c USING (oid)
    ) END)
FROM pg_class c WHERE c.oid = to_regclass(:name)"""
_SHAPES = f"""
SELECT ({_SHAPE}) FROM unnest(%(names)s::text[]) WITH ORDINALITY AS named (name, place) ORDER BY place
""".replace(":name", "named.name")


def postgres_shapes(conn: Connection, tables: Sequence[Table]) -> list[str | None]:
    """Return the shapes as object ids, which differ even if an object is replaced by one of the same name.

    Triggers also cover foreign keys, in both directions. The id of a default stands for its expression. The server
    takes most of the time to plan the query, so that one for many tables takes little more than one for a single table.
    """
    names = [_NAMES.table(table) for table in tables]
    return list(conn.exec_driver_sql(_SHAPES, {"names": names}).scalars())
