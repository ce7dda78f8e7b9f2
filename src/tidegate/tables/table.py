"""The description of a target table, as users write it: :class:`Table` and :class:`Mode`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, TypeAlias

from tidegate.core.arguments import Accepts, Count, convert_arguments, several
from tidegate.core.columns import AddedColumns, Evolution, Evolve, Tombstones, UnknownFields
from tidegate.core.text import is_text
from tidegate.errors import ConfigurationError
from tidegate.tables.types import ColumnType, Declared, reads_changes

__all__ = ["Evolution", "Mode", "Table", "TableArgument", "Tombstones", "UnknownFields"]


RECORD_KEY = "{key}"
"""As the key of a table that records name: the fields of its records' keys."""

_CONTROL = range(32)


def _typed(given: Any) -> dict[str, ColumnType] | None:
    if not isinstance(given, Mapping):
        return None
    types = {}
    for name, declared in given.items():
        try:
            types[name] = ColumnType.of(declared)
            _check_default(types[name])
        except ConfigurationError as error:
            raise ConfigurationError(f"column {name!r}: {error}") from None
    return types


def _check_default(kind: ColumnType) -> None:
    if kind.default is not None:
        from tidegate.tables.defaults import check_default  # noqa: PLC0415 - needs an extra

        check_default(kind)


_Names: TypeAlias = Annotated[Sequence[str], several(str, "the name of a column")]
_Columns: TypeAlias = Annotated[Mapping[str, Declared], Accepts("a mapping from columns to their types", _typed)]


class Mode(Enum):
    """How a record changes the table."""

    APPEND = "append"
    """Insert a row for each record."""
    UPSERT = "upsert"
    """Update the row with the record's key, or insert it if there is none."""
    ACCUMULATE = "accumulate"
    """Add the record's numbers to those in the row with its key, or insert the row if there is none."""
    IGNORE = "ignore"
    """Insert the row, unless a row with its key exists."""
    UPDATE = "update"
    """Update the row with the record's key; do nothing if there is none."""


@dataclass(frozen=True)
class Table:
    """A target table, in the same database as the ledger.

    ``key`` names the columns that identify a row. Every mode except append needs it; ``create`` makes it the primary
    key. ``create`` creates the table if it does not exist. ``evolve`` adds a column for each new field; an
    :class:`Evolution` says what is done for each kind of change. ``columns`` declares column types and, with
    ``create``, which columns the new table has; without it, they are inferred from the first records. ``add`` names the
    columns that accumulate adds to; by default, all numeric columns outside the key.
    ``tombstones`` sets how a record without a value is handled; by default it deletes the row with its key in mode
    upsert, and is a misfit in all other modes, unless the format is a function, which then gets it. ``unknown`` sets
    how a field without a column is handled. ``ignore_case`` matches fields with columns regardless of case.
    ``soft_delete`` names a column of booleans: a deletion sets it, and leaves the row; every other change clears it.
    ``guard`` names a column of whole numbers for the position of an event in the log of its source: a change event
    that is older than the row changes nothing. ``guard_table`` names a table that keeps the position of the last
    truncate, so that it has an order among the events of other partitions, and the server that positions are of.
    ``most_columns`` is the number of columns beyond which records add no more. ``exact`` makes a value of another type
    a misfit, even if it could be converted without loss.
    """

    name: str
    key: _Names = ()
    mode: Mode | str = Mode.APPEND
    create: bool = False
    evolve: Evolve = False
    columns: _Columns = field(default_factory=dict)
    add: _Names = ()
    tombstones: Tombstones | str | None = None
    schema: str | None = None
    exact: bool = False
    unknown: UnknownFields | str = UnknownFields.IGNORE
    ignore_case: bool = True
    most_columns: Count = 200
    soft_delete: str | None = None
    guard: str | None = None
    guard_table: str | None = None

    def __post_init__(self) -> None:
        try:
            convert_arguments(self)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"table {self.name!r}, {error}" if isinstance(self.name, str) else str(error)
            ) from None
        _check_name("table", self.name)
        if self.schema is not None:
            _check_name("schema", self.schema)
        if self.guard_table is not None:
            _check_name(f"table, in guard_table of table {self.name!r}", self.guard_table)
        own = (("soft_delete", self.soft_delete), ("guard", self.guard))
        filled = [(said, (name,)) for said, name in own if name is not None]
        for said, names in (*filled, ("key", self.key), ("add", self.add), ("columns", self.columns)):
            for name in names:
                _check_name(f"column of table {self.name!r}, in {said}", name)
        self._check()

    def _check(self) -> None:
        appends = self.mode is Mode.APPEND
        if not appends and not self.key:
            self._refuse(f"mode {self.kind.value!r} needs key=…, the columns that identify a row")
        if len(set(self.key)) < len(self.key):
            self._refuse("key names a column twice")
        if self.add and self.mode is not Mode.ACCUMULATE:
            self._refuse("add=… goes with mode='accumulate' only")
        self._check_filled()
        if clash := sorted(set(self.add) & set(self.key)):
            self._refuse(f"{clash[0]!r} is in the key, so it cannot be added to")
        if self.tombstones is Tombstones.DELETE and appends:
            self._refuse("mode 'append' has no row for a tombstone to delete; use mode='upsert'")
        if self.unknown is UnknownFields.REFUSE and self.evolution.add is not AddedColumns.REFUSE:
            done = "adds a column for an unknown field" if self.evolution.adds else "leaves an unknown field out"
            given = "evolve=True" if self.evolve is True else f"evolve, with add={str(self.evolution.add)!r},"
            self._refuse(f"{given} {done}, and unknown='refuse' refuses it; choose one")
        lost = [name for name in self.key if name not in self.columns and name != RECORD_KEY]
        if self.create and self.columns and lost:
            self._refuse(f"create=True needs the type of {lost[0]!r}, a column of the key, in columns=…")
        for name in self.add:
            declared = self.types.get(name)
            if declared is not None and not declared.is_numeric:
                self._refuse(f"column {name!r} is {declared}; only numbers can be added")

    def _check_filled(self) -> None:
        for said, name in (("soft_delete", self.soft_delete), ("guard", self.guard)):
            if name is not None and not (self.kind is Mode.UPSERT and self.deletes):
                self._refuse(f"{said} goes with mode='upsert' and with deletions")
        if self.soft_delete is not None and self.soft_delete in self.key:
            self._refuse(f"{self.soft_delete!r} is in the key, so it cannot tell whether the row is deleted")
        if self.guard is not None and self.guard in (*self.key, self.soft_delete):
            self._refuse(f"guard={self.guard!r} needs a column of its own, beside the key and soft_delete")
        if self.guard_table is not None and (self.guard is None or self.guard_table.casefold() == self.name.casefold()):
            self._refuse("guard_table is a table of its own, which goes with guard")

    @cached_property
    def kind(self) -> Mode:
        """The mode, always as a :class:`Mode`."""
        return Mode(self.mode)

    @cached_property
    def evolution(self) -> Evolution:
        """What is done for each kind of change, whichever way it was given."""
        if isinstance(self.evolve, Evolution):
            return self.evolve
        return Evolution() if self.evolve else Evolution(add=UnknownFields(self.unknown).value)

    @property
    def types(self) -> Mapping[str, ColumnType]:
        """The declared types by column name, as :class:`ColumnType` objects."""
        return {name: ColumnType.of(declared) for name, declared in self.columns.items()}

    @property
    def deletes(self) -> bool:
        """Whether a tombstone deletes the row with its key."""
        return self.on_tombstone is Tombstones.DELETE

    @property
    def on_tombstone(self) -> Tombstones:
        """How a record without a value is handled: as set in ``tombstones``, or the default of the mode."""
        if self.tombstones is None:
            return Tombstones.DELETE if self.kind is Mode.UPSERT else Tombstones.REFUSE
        return Tombstones(self.tombstones)

    @property
    def filled(self) -> tuple[str, ...]:
        """The columns that no field of a record fills: those of ``soft_delete`` and ``guard``."""
        return tuple(name for name in (self.soft_delete, self.guard) if name is not None)

    @property
    def of_guard(self) -> Table | None:
        """The table that ``guard_table`` names."""
        if self.guard_table is None:
            return None
        return Table(self.guard_table, schema=self.schema, create=self.create, columns=_OF_GUARD, key=("id",))

    def check_format(self, form: Any) -> None:
        """Raise if the table cannot take the records of a format, or of the format with this name."""
        if reads_changes(form):
            self.check_changes()
        elif self.guard is not None:
            self._refuse("guard is the position of a change event in the log of its source; use format='debezium'")

    def check_changes(self, *, has_key: bool = True) -> None:
        """Raise if the table cannot take change events; ``has_key``: whether its key comes from fields of the row."""
        if self.kind is not Mode.UPSERT or not self.deletes or not has_key:
            self._refuse(
                "change events need mode='upsert', a key that comes from fields of the row, and tombstones='delete', "
                "the default"
            )

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    def _refuse(self, why: str) -> None:
        raise ConfigurationError(f"table {self.name!r}: {why}")


_OF_GUARD = dict.fromkeys(("id", "emptied_at", "server", "snapshot"), "integer")


def _check_name(what: str, name: Any) -> None:
    """Refuse names that are invalid in every database; each database checks the rest itself."""
    if not is_text(name) or not name.strip() or any(ord(character) in _CONTROL for character in name):
        raise ConfigurationError(f"{name!r} cannot be the name of a {what}")


def _table(given: Any) -> Table | None:
    return Table(given) if is_text(given) else given if isinstance(given, Table) else None


TableArgument: TypeAlias = Annotated[Table, Accepts("a Table, or the name of one", _table)]
"""A table as an argument; a bare name stands for a table in mode append."""
