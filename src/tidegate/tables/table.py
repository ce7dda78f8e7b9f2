"""A table that records go into, as a user describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, TypeAlias

from tidegate.core.arguments import Kind, convert_arguments, several
from tidegate.core.errors import ConfigurationError
from tidegate.core.texts import is_text
from tidegate.tables.types import ColumnType, Declared

__all__ = ["Mode", "Table", "TableArgument"]

_CONTROL = range(32)


def _typed(given: Any) -> dict[str, ColumnType] | None:
    if not isinstance(given, Mapping):
        return None
    types = {}
    for name, declared in given.items():
        try:
            types[name] = ColumnType.of(declared)
        except ConfigurationError as error:
            raise ConfigurationError(f"column {name!r}: {error}") from None
    return types


_Names: TypeAlias = Annotated[Sequence[str], several(str, "the name of a column")]
_Columns: TypeAlias = Annotated[Mapping[str, Declared], Kind("a mapping from columns to their types", _typed)]


class Mode(Enum):
    """What a record does: it adds a row, or sets the row of its key, or adds to the numbers in the row of its key."""

    APPEND = "append"
    UPSERT = "upsert"
    ACCUMULATE = "accumulate"


@dataclass(frozen=True)
class Table:
    """A table of the database that holds the ledger.

    ``key`` names the columns that tell rows apart: upsert and accumulate need it, and ``create`` makes it the primary
    key. ``create`` makes the table if it is not there, ``evolve`` adds a column for each new field. ``columns``
    declares types, and with ``create`` the columns themselves; if there are none, the first records show them. ``add``
    names the columns that accumulate adds to (all numbers outside of the key, if it names none). ``delete``: a
    tombstone deletes the row of its key; upsert does so unless told otherwise.
    """

    name: str
    key: _Names = ()
    mode: Mode | str = Mode.APPEND
    create: bool = False
    evolve: bool = False
    columns: _Columns = field(default_factory=dict)
    add: _Names = ()
    delete: bool | None = None
    schema: str | None = None

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
            self._refuse(f"mode {self.kind.value!r} needs key=…, the columns that tell its rows apart")
        if len(set(self.key)) < len(self.key):
            self._refuse("key names a column twice")
        if self.add and self.mode is not Mode.ACCUMULATE:
            self._refuse("add=… goes with mode='accumulate' only")
        if clash := sorted(set(self.add) & set(self.key)):
            self._refuse(f"{clash[0]!r} is in the key, so it cannot be added to")
        if self.delete and appends:
            self._refuse("mode 'append' has no row for a tombstone to delete; use mode='upsert'")
        if self.create and self.columns and (lost := [name for name in self.key if name not in self.columns]):
            self._refuse(f"create=True needs the type of {lost[0]!r}, a column of the key, in columns=…")
        for name in self.add:
            declared = self.types.get(name)
            if declared is not None and not declared.is_numeric:
                self._refuse(f"column {name!r} is {declared}; only numbers can be added")

    @property
    def kind(self) -> Mode:
        """The mode, as the enum."""
        return Mode(self.mode)

    @property
    def types(self) -> Mapping[str, ColumnType]:
        """The declared types, as values."""
        return {name: ColumnType.of(declared) for name, declared in self.columns.items()}

    @property
    def deletes(self) -> bool:
        """Whether a tombstone deletes the row of its key."""
        return self.kind is Mode.UPSERT if self.delete is None else self.delete

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    def _refuse(self, why: str) -> None:
        raise ConfigurationError(f"table {self.name!r}: {why}")


def _check_name(what: str, name: Any) -> None:
    """What no database can have as a name; the rest is the database's to judge."""
    if not is_text(name) or not name.strip() or any(ord(character) in _CONTROL for character in name):
        raise ConfigurationError(f"{name!r} cannot be the name of a {what}")


def _table(given: Any) -> Table | None:
    return Table(given) if is_text(given) else given if isinstance(given, Table) else None


TableArgument: TypeAlias = Annotated[Table, Kind("a Table, or the name of one", _table)]
"""A table as an argument: a name alone is one that rows are appended to."""
