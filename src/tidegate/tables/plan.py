"""Plans: batches of rows as a few bulk steps.

The steps leave the table in the state that one statement per record, in order, would leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import ConfigurationError
from tidegate.tables.column import Column
from tidegate.tables.layout import Layout, Order
from tidegate.tables.rows import Rows, can_sum, signs, summed
from tidegate.tables.table import Mode
from tidegate.tables.types import TypeName

__all__ = ["Plan", "PlanStep", "has_extreme_json"]

_NAN = float("nan")
_FEW = 4  # least number of rows per statement, on average, that makes separate statements worthwhile
_LONG_NUMBER = "[0-9][eE][+-]?[0-9]{3}|[0-9]{200}"
_LONG_KEY = 65_535  # bytes of a name in an object, beyond which MySQL refuses it


class PlanStep(NamedTuple):
    """One step: write the batch or, with ``deletes``, delete the rows with its keys.

    The batch has exactly the columns that the statement names. ``single`` means one statement per row, in order. With
    ``exists``, the rows change rows that must exist; each key then occurs once in the batch. With ``truncates``, all
    rows of the table are deleted instead.
    """

    batch: Any
    deletes: bool = False
    single: bool = False
    exists: bool = False
    truncates: bool = False


class Plan:
    """The steps for one batch of rows.

    ``in_turn``: the database processes the rows of a statement one after the other, so a key may occur twice in it.
    ``alike`` asks the database which of the given keys it considers equal, and returns lists of their places. It is
    used if a key must not occur twice in a statement, but the database may consider keys equal that differ in Python,
    as with a collation that ignores case. ``folded`` maps the values of a column so that values which the database
    considers equal become equal in Python, and others seldom do; it returns ``None`` if that is not possible. JSON with
    more than ``nested`` brackets may be nested more deeply than the database accepts. A key of more than ``short``
    bytes may be too large for its index; ``None`` if that cannot be.
    """

    def __init__(
        self,
        layout: Layout,
        rows: Rows,
        *,
        in_turn: bool,
        nested: int,
        short: int | None = None,
        alike: Callable[[Any], Sequence[Sequence[int]]] | None = None,
        folded: Callable[[Any, Column], Any | None] = lambda array, column: None,
    ) -> None:
        self._layout = layout
        self._mode = layout.table.kind
        self._in_turn = in_turn
        self._nested = nested
        self._short = short
        self._alike = alike
        self._folded = folded
        self._dead: list[bool] | None = None if rows.tombstones is None else rows.tombstones.to_pylist()
        self._exists: list[bool] | None = None if rows.existing is None else rows.existing.to_pylist()
        lacking = _lacking(layout, rows)
        nowhere = [name for name, mask in lacking.items() if _everywhere(mask, rows.tombstones)]
        self._batch = rows.batch.drop_columns(nowhere) if nowhere else rows.batch
        self._lacking = {name: mask for name, mask in lacking.items() if name not in nowhere}
        if not self._batch.num_columns:
            self._refuse()

    def steps(self) -> Iterator[PlanStep]:
        """Yield the steps in the order in which they must run."""
        free, everything = self._layout.order is Order.FREE, range(len(self._batch))
        if self._mode is Mode.APPEND:
            if free and not self._layout.is_numbered and self._lacking:
                yield from self._by_columns(self._batch, self._lacking)
            else:
                yield from self._in_order(everything)
        elif free:
            plain, doubtful = self._told_apart(everything) if self._folds and self._takes_turns else (everything, ())
            if self._is_in_doubt:
                often = Counter(self._keys)
                repeated = {row for row in plain if often[self._keys[row]] > 1}
                doubtful = (
                    sorted(repeated.union(doubtful)) if not (repeated and self._layout.is_numbered) else everything
                )
                plain = sorted(set(plain).difference(doubtful))
            yield from self._merged(plain)
            yield from self._in_order(doubtful)
        else:
            yield from self._in_order(everything)

    def _merged(self, rows: Sequence[int]) -> Iterator[PlanStep]:
        """Merge the rows of each key; keys may be written in any order.

        The last tombstone of a key replaces all rows before it; the rows after it become one change. But keys with both
        rows and tombstones are written in order if a row before the tombstone might fail, and only the database can
        tell: in mode accumulate an addition might overflow, and a long key might be too large for its index.
        """
        if not rows:
            return
        keys = self._keys
        if self._layout.table.guard is not None and (unsure := self._unsure(rows)):
            yield from self._in_order([row for row in rows if keys[row] in unsure])
            rows = [row for row in rows if keys[row] not in unsure]
        is_soft = self._layout.table.soft_delete is not None  # then a deletion keeps what the rows before it wrote
        if self._dead is not None and (self._exists is not None or is_soft):
            dead, exists = self._dead, self._exists or ()
            changed = {keys[row] for row in rows if (not dead[row] if is_soft else exists[row])}
            mixed = changed.intersection(keys[row] for row in rows if self._dead[row])
            if mixed:
                yield from self._in_order([row for row in rows if keys[row] in mixed])
                rows = [row for row in rows if keys[row] not in mixed]
        if self._dead is not None and (doubtful := self._long if not self._layout.added else range(len(keys))):
            before = {keys[row] for row in rows if not self._dead[row]}.intersection(keys[row] for row in doubtful)
            deleted = before.intersection(keys[row] for row in rows if self._dead[row])
            if deleted and self._layout.is_numbered:
                yield from self._in_order(rows)
                return
            if deleted:
                yield from self._in_order([row for row in rows if keys[row] in deleted])
                rows = [row for row in rows if keys[row] not in deleted]
        if self._dead is not None:
            gone = {keys[row]: row for row in rows if self._dead[row]}
            if gone:
                yield PlanStep(_taken(self._gone_columns, [gone[key] for key in sorted(gone)]), deletes=True)
                rows = [row for row in rows if row > gone.get(keys[row], -1)]
        levels = self._levels(rows)
        if len(levels) > 1 and (self._in_turn or len(rows) < len(levels) * _FEW):
            yield from self._in_order(rows)
        else:
            for level in levels:
                yield from self._one_each(level)

    def _told_apart(self, rows: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Split the rows: those whose keys are equal in the database only if equal in Python, and all others."""
        columns = []
        for array, name in zip(self._key_columns.columns, self._layout.table.key, strict=True):
            column = self._layout.by_name[name]
            columns.append(array if not column.folds else self._folded(array, column))
        if any(column is None for column in columns):
            return (), rows
        if len(columns) == 1 and pc.count_distinct(columns[0]) == pc.count_distinct(self._key_columns.column(0)):
            return rows, ()
        folded = list(zip(*map(_hashable, columns), strict=True))
        first = dict(zip(folded, self._keys, strict=True))
        mixed = {fold for fold, key in zip(folded, self._keys, strict=True) if first[fold] != key}
        return [row for row in rows if folded[row] not in mixed], [row for row in rows if folded[row] in mixed]

    def _one_each(self, rows: Sequence[int]) -> Iterator[PlanStep]:
        """Write one row per key, ordered by key, so that concurrent transactions on the same rows do not deadlock.

        If the database numbers new rows, they keep the order of their records instead.
        """
        keys = self._keys if len(rows) == len(self._keys) else [self._keys[row] for row in rows]
        last = dict(zip(keys, rows, strict=True))
        ordered: list[Any] = list(last) if self._layout.is_numbered else sorted(last)
        distinct = len(last) == len(rows)
        if self._exists is not None:
            yield from self._combined(rows, keys, ordered, last)
        elif distinct or self._mode is Mode.IGNORE or not (self._lacking or self._layout.added or self._is_respelled):
            chosen = _first(keys, rows) if self._mode is Mode.IGNORE and not distinct else last
            taken = [chosen[key] for key in ordered]
            yield from self._by_columns(_taken(self._batch, taken), _masks(self._lacking, taken))
        else:
            yield from self._combined(rows, keys, ordered, last)

    def _combined(
        self, rows: Sequence[int], keys: Sequence[Any], ordered: Sequence[Any], last: Mapping[Any, int]
    ) -> Iterator[PlanStep]:
        """Combine the rows of each key: the key as first spelled, sums of added columns, else the last given value.

        The first row of a key decides whether a row must exist: for those that follow, the row is then there.
        """
        first = _first(keys, rows) if self._is_respelled or self._exists is not None else last
        number = {key: place for place, key in enumerate(ordered)}
        source = pa.array([last[key] for key in ordered], pa.int64())
        spelled = pa.array([first[key] for key in ordered], pa.int64())
        groups = [number[key] for key in keys]
        arrays, lacking = [], {}
        for name, array in zip(self._batch.schema.names, self._batch.columns, strict=True):
            present = source
            if name in self._lacking:
                mask = self._lacking[name].to_pylist()
                given = {key: row for key, row in zip(keys, rows, strict=True) if not mask[row]}
                present = pa.array([given.get(key) for key in ordered], pa.int64())
                lacking[name] = present.is_null()
            if name in self._layout.table.key:
                arrays.append(array.take(spelled))
            elif name in self._layout.added:
                every = array if len(rows) == len(array) else array.take(pa.array(rows, pa.int64()))
                arrays.append(summed(every, groups, len(ordered), self._layout.by_name[name]))
            else:
                arrays.append(array.take(present))
        merged = pa.RecordBatch.from_arrays(arrays, names=self._batch.schema.names)
        if self._exists is None:
            yield from self._by_columns(merged, lacking)
            return
        for exists in (False, True):
            taken = [place for place, key in enumerate(ordered) if self._exists[first[key]] is exists]
            if taken:
                for step in self._by_columns(_taken(merged, taken), _masks(lacking, taken)):
                    yield step._replace(exists=exists)

    def _levels(self, rows: Sequence[int]) -> list[Sequence[int]]:
        """Divide the rows into levels, such that the rows of one key within a level may be merged.

        Values are summed here only if the database could not fail at an intermediate sum: if they have the same sign,
        and if no row lacks a column with a default, since only a new row gets the default.
        """
        keys = self._keys
        added = [name for name in self._batch.schema.names if name in self._layout.added]
        if not added or len(set(keys) if len(rows) == len(keys) else {keys[row] for row in rows}) == len(rows):
            return [rows]
        columns = [self._layout.by_name[name] for name in added]
        alone = any(not can_sum(column) or (column.has_default and column.name in self._lacking) for column in columns)
        opposed = [
            found for column in columns if not alone and (found := signs(self._batch.column(column.name), column))
        ]
        if not alone and not opposed:
            return [rows]
        levels: list[list[int]] = []
        reached: dict[Hashable, tuple[int, list[int]]] = {}
        for row in rows:
            level, before = reached.get(keys[row], (-1, []))
            here = [found[row] for found in opposed]
            if level < 0 or alone or any(old * new < 0 for old, new in zip(before, here, strict=True)):
                level += 1
            else:
                here = [old or new for old, new in zip(before, here, strict=True)]
            reached[keys[row]] = level, here
            if level == len(levels):
                levels.append([])
            levels[level].append(row)
        return list(levels)

    def _in_order(self, rows: Sequence[int]) -> Iterator[PlanStep]:
        """Write the rows in the order of their records.

        A new step begins where rows and tombstones alternate, where the set of columns changes, and where a key repeats
        if the database does not accept it twice in a statement.
        """
        if not rows:
            return
        sets = _sets(self._lacking, len(self._batch))
        batch = self._batch if len(rows) == len(self._batch) else _taken(self._batch, rows)
        dead = self._dead or [False] * len(self._batch)
        exists = self._exists or [False] * len(self._batch)
        kinds = (
            [(dead[row], 0 if dead[row] or not sets else sets[row], exists[row]) for row in rows]
            if self._dead or sets or self._exists
            else []
        )
        single = self._layout.order is Order.SINGLE
        for start, end in _runs(kinds, len(rows)):
            part = batch.slice(start, end - start)
            deletes, lacked, changes = kinds[start] if kinds else (False, 0, False)
            if deletes:
                keys = part.select(self._of_deletion)
                yield PlanStep(keys, deletes=True, single=self._layout.order is not Order.FREE)
                continue
            part = self._without(part, self._lacking, lacked)
            if changes:
                most = 1 if single else len(part)
                for first, last in _distinct([self._keys[row] for row in rows[start:end]], most):
                    yield PlanStep(part.slice(first, last - first), exists=True)
            elif single or self._takes_turns:
                yield PlanStep(part, single=single)
            elif self._mode is Mode.UPDATE:
                yield PlanStep(part, single=True)
            else:
                yield from self._once_each(part, [self._keys[row] for row in rows[start:end]])

    @staticmethod
    def _once_each(batch: Any, keys: Sequence[Hashable]) -> Iterator[PlanStep]:
        """Split the batch into runs in which no key repeats; if the runs are short, write one row at a time."""
        runs = _distinct(keys, len(keys))
        if len(runs) > 1 and len(keys) < len(runs) * _FEW:
            yield PlanStep(batch, single=True)
            return
        for start, end in runs:
            yield PlanStep(batch.slice(start, end - start))

    def _by_columns(self, batch: Any, lacking: Mapping[str, Any]) -> Iterator[PlanStep]:
        """Yield a step for each set of columns; if the database numbers rows, for each run, to keep their order."""
        sets = _sets(lacking, len(batch))
        if not sets:
            yield PlanStep(batch)
        elif self._layout.is_numbered:
            for start, end in _runs(sets, len(sets)):
                yield PlanStep(self._without(batch.slice(start, end - start), lacking, sets[start]))
        else:
            of: dict[int, list[int]] = {}
            for row, lacked in enumerate(sets):
                of.setdefault(lacked, []).append(row)
            for lacked, rows in of.items():
                yield PlanStep(self._without(_taken(batch, rows), lacking, lacked))

    def _without(self, batch: Any, lacking: Mapping[str, Any], lacked: int) -> Any:
        left_out = [name for bit, name in enumerate(lacking) if lacked >> bit & 1]
        if len(left_out) == batch.num_columns:
            self._refuse()
        return batch.drop_columns(left_out) if left_out else batch

    def _refuse(self) -> None:
        raise ConfigurationError(f"table {self._layout.table}: the rows have no value for any of its columns")

    @property
    def _is_in_doubt(self) -> bool:
        """Whether a row may fail in the database for a reason that cannot be checked here.

        Such reasons are a default that only some rows need, and JSON that exceeds the database's limits.
        """
        return any(self._layout.by_name[name].has_default for name in self._lacking) or any(
            has_extreme_json(array, self._layout.by_name[name], self._nested)
            for name, array in zip(self._batch.schema.names, self._batch.columns, strict=True)
        )

    @property
    def _long(self) -> Sequence[int]:
        """The rows whose key may be too large for its index."""
        texts = [array for array in self._key_columns.columns if _has_bytes(array)]
        if self._short is None or not texts:
            return ()
        sizes = reduce(pc.add, map(pc.binary_length, texts))
        found: list[int] = pc.indices_nonzero(pc.greater(sizes, self._short)).to_pylist()
        return found

    @property
    def _takes_turns(self) -> bool:
        """Whether a key may occur twice in a statement; in mode ignore, the second row simply has no effect."""
        return self._in_turn or self._mode in (Mode.APPEND, Mode.IGNORE)

    @property
    def _folds(self) -> bool:
        return any(self._layout.by_name[name].folds for name in self._layout.table.key)

    @property
    def _is_respelled(self) -> bool:
        """Whether ``_keys`` may be equal for keys that are spelled otherwise: -0.0 and 0.0, or what ``alike`` finds."""
        return self._folds and (
            self._alike is not None or any(pa.types.is_floating(array.type) for array in self._key_columns.columns)
        )

    @property
    def _key_columns(self) -> Any:
        return self._batch.select(list(self._layout.table.key))

    @property
    def _of_deletion(self) -> list[str]:
        """The columns that a deletion needs."""
        table = self._layout.table
        return [*table.key, *(() if table.guard is None else (table.guard,))]

    @property
    def _gone_columns(self) -> Any:
        return self._batch.select(self._of_deletion)

    def _unsure(self, rows: Sequence[int]) -> set[Any]:
        """Return the keys of which the row in the table may be newer than some of the changes here, but not than all.

        Only the database can tell which of them count, so that they cannot be merged if a change lacks a column, or if
        an older one follows a newer one.
        """
        positions = self._batch.column(self._layout.table.guard).to_pylist()
        lacked = _sets(self._lacking, len(self._batch))
        latest: dict[Any, int] = {}
        partial: set[Any] = set()
        unsure: set[Any] = set()
        for row in rows:
            key, position = self._keys[row], positions[row]
            is_partial = bool((lacked and lacked[row]) or (self._exists and self._exists[row]))
            if key in latest and (position < latest[key] or is_partial or key in partial):
                unsure.add(key)
            if is_partial:
                partial.add(key)
            latest[key] = max(position, latest.get(key, position))
        return unsure

    @cached_property
    def _keys(self) -> Sequence[Any]:
        """A hashable value per row to compare keys; keys that the database considers equal get that of the first."""
        columns = [_hashable(array) for array in self._key_columns.columns]
        keys: list[Any] = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        if not self._folds or self._alike is None or len(keys) == 1:
            return keys
        first = _first(keys, range(len(keys)))
        spelled = sorted(first.values())
        meant = {
            keys[spelled[place]]: keys[spelled[same[0]]]
            for same in self._alike(_taken(self._key_columns, spelled))
            for place in same[1:]
        }
        return [meant.get(key, key) for key in keys] if meant else keys


def _lacking(layout: Layout, rows: Rows) -> dict[str, Any]:
    """Return the columns that some rows lack, with masks of those rows.

    A lacking column without a default is null in a new row, so modes that only insert can write the null instead. This
    does not hold for views, whose columns have the defaults of another table, nor for NOT NULL columns, where the
    database reports a missing value differently from a null.
    """
    inserts = layout.table.kind in (Mode.APPEND, Mode.IGNORE) and layout.takes_bulk
    key = () if layout.table.kind is Mode.APPEND else layout.table.key
    found = {}
    for name, mask in rows.lacking.items():
        if name in key or name not in rows.batch.schema.names:
            continue
        column = layout.by_name[name]
        is_null = inserts and column.nullable and not column.has_default
        if is_null and not _everywhere(mask, rows.tombstones):
            continue
        if mask.true_count:
            found[name] = mask
    return found


def _everywhere(mask: Any, tombstones: Any) -> bool:
    """Whether every row lacks the column; tombstones count as lacking it, since only their key matters."""
    lacked = mask if tombstones is None else pc.or_(mask, tombstones)
    return bool(lacked.true_count == len(lacked))


def _masks(lacking: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    taken = pa.array(rows, pa.int64()) if lacking else None
    return {name: mask.take(taken) for name, mask in lacking.items()}


def _sets(lacking: Mapping[str, Any], count: int) -> list[int]:
    """Return for each row a bit set of the columns that it lacks; an empty list if no row lacks any."""
    if not lacking:
        return []
    sets = [0] * count
    for bit, mask in enumerate(lacking.values()):
        for row in pc.indices_nonzero(mask).to_pylist():
            sets[row] |= 1 << bit
    return sets


def _first(keys: Sequence[Any], rows: Sequence[int]) -> dict[Any, int]:
    return dict(zip(reversed(keys), reversed(rows), strict=True))


def _runs(kinds: Sequence[Any], count: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each run of equal kinds; a single run if ``kinds`` is empty."""
    starts = [place for place in range(len(kinds)) if place == 0 or kinds[place] != kinds[place - 1]] or [0]
    return zip(starts, [*starts[1:], count], strict=True)


def _distinct(keys: Sequence[Hashable], most: int) -> list[tuple[int, int]]:
    """Return start and end of runs of at most ``most`` rows in which no key repeats."""
    cuts, seen = [0], set[Hashable]()
    for place, key in enumerate(keys):
        if key in seen or len(seen) == most:
            cuts.append(place)
            seen.clear()
        seen.add(key)
    return list(zip(cuts, [*cuts[1:], len(keys)], strict=True))


def has_extreme_json(array: Any, column: Column, nested: int) -> bool:
    """Whether JSON may be nested more deeply than the database accepts, or have too large numbers or too long names."""
    if column.type.name is not TypeName.JSON:
        return False
    if (pc.max(pc.binary_length(array)).as_py() or 0) > _LONG_KEY:
        return True
    brackets = pc.max(pc.add(pc.count_substring(array, "["), pc.count_substring(array, "{"))).as_py() or 0
    return brackets > nested or bool(pc.any(pc.match_substring_regex(array, _LONG_NUMBER)).as_py())


def _hashable(array: Any) -> list[Hashable]:
    """Return hashable values to compare keys. Times become integers, which is 100 times faster; all NaNs are equal."""
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    elif pa.types.is_date32(array.type):
        array = array.cast(pa.int32())
    values: list[Hashable] = array.to_pylist()
    if pa.types.is_floating(array.type) and pc.any(pc.is_nan(array)).as_py():
        return [value if value == value else _NAN for value in values]  # noqa: PLR0124
    return values


def _has_bytes(array: Any) -> bool:
    return bool(pa.types.is_string(array.type) or pa.types.is_binary(array.type))


def _taken(batch: Any, rows: Sequence[int]) -> Any:
    return batch.take(pa.array(rows, pa.int64()))
