"""The description of a target table, as users write it: :class:`Table` and :class:`Mode`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, TypeAlias

from tidegate.core.arguments import Accepts, Count, convert_arguments, several
from tidegate.core.columns import Tombstones, UnknownFields
from tidegate.core.text import is_text
from tidegate.errors import ConfigurationError
from tidegate.tables.types import ColumnType, Declared

__all__ = ["Mode", "Table", "TableArgument", "Tombstones", "UnknownFields"]


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
    key. ``create`` creates the table if it does not exist. ``evolve`` adds a column for each new field. ``columns``
    declares column types and, with ``create``, which columns the new table has; without it, they are inferred from the
    first records. ``add`` names the columns that accumulate adds to; by default, all numeric columns outside the key.
    ``tombstones`` sets how a record without a value is handled; by default it deletes the row with its key in mode
    upsert, and is a misfit in all other modes, unless the format is a function, which then gets it. ``unknown`` sets
    how a field without a column is handled. ``ignore_case`` matches fields with columns regardless of case.
    ``most_columns`` is the number of columns beyond which records add no more. ``exact`` makes a value of another type
    a misfit, even if it could be converted without loss.
    """

    name: str
    key: _Names = ()
    mode: Mode | str = Mode.APPEND
    create: bool = False
    evolve: bool = False
    columns: _Columns = field(default_factory=dict)
    add: _Names = ()
    tombstones: Tombstones | str | None = None
    schema: str | None = None
    exact: bool = False
    unknown: UnknownFields | str = UnknownFields.IGNORE
    ignore_case: bool = True
    most_columns: Count = 200

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
        for said, names in (("key", self.key), ("add", self.add), ("columns", self.columns)):
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
        if clash := sorted(set(self.add) & set(self.key)):
            self._refuse(f"{clash[0]!r} is in the key, so it cannot be added to")
        if self.tombstones is Tombstones.DELETE and appends:
            self._refuse("mode 'append' has no row for a tombstone to delete; use mode='upsert'")
        if self.evolve and self.unknown is UnknownFields.REFUSE:
            self._refuse("evolve=True adds a column for an unknown field, and unknown='refuse' refuses it; choose one")
        if self.create and self.columns and (lost := [name for name in self.key if name not in self.columns]):
            self._refuse(f"create=True needs the type of {lost[0]!r}, a column of the key, in columns=…")
        for name in self.add:
            declared = self.types.get(name)
            if declared is not None and not declared.is_numeric:
                self._refuse(f"column {name!r} is {declared}; only numbers can be added")

    @cached_property
    def kind(self) -> Mode:
        """The mode, always as a :class:`Mode`."""
        return Mode(self.mode)

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

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    def _refuse(self, why: str) -> None:
        raise ConfigurationError(f"table {self.name!r}: {why}")


def _check_name(what: str, name: Any) -> None:
    """Refuse names that are invalid in every database; each database checks the rest itself."""
    if not is_text(name) or not name.strip() or any(ord(character) in _CONTROL for character in name):
        raise ConfigurationError(f"{name!r} cannot be the name of a {what}")


def _table(given: Any) -> Table | None:
    return Table(given) if is_text(given) else given if isinstance(given, Table) else None


TableArgument: TypeAlias = Annotated[Table, Accepts("a Table, or the name of one", _table)]
"""A table as an argument; a bare name stands for a table in mode append."""
