"""The schema of Avro values: its types with full names, and the column types of its fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from tidegate.core.schemas import Reference, Schema
from tidegate.tables.codec import Mismatched
from tidegate.tables.types import ColumnType, TypeName

__all__ = ["AvroSchema", "Tree", "is_record"]

Tree: TypeAlias = Any
"""A type: the name of a primitive one, a list for a union, or a mapping with ``type`` for all others.

A mapping of the type ``name`` stands for a type that is defined elsewhere. A primitive type is a mapping if it has a
logical type.
"""

_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_MOST_DIGITS = 10_000  # of a decimal: bounds with more of them would take memory and time without end
_NAMED = {"record", "error", "enum", "fixed"}


class AvroSchema:
    """One schema of Avro with those that it refers to. Unknown and invalid logical types are ignored, as Avro asks for.

    ``tree`` is the type, and ``names`` has those that have a name. Raises :class:`Mismatched` if it is not understood.
    """

    def __init__(self, schema: Schema) -> None:
        self.names: dict[str, dict[str, Any]] = {}
        self.has_aliases = False
        """Whether some field has a former name."""
        self._empty: dict[str, bool] = {}  # whether records take no bytes, by name
        try:
            for each in _all(schema.references):
                self._expanded(json.loads(each.schema.text), "")
            self.tree: Tree = self._expanded(json.loads(schema.text), "")
            self.fields = self.fields_of(self.tree) if is_record(self.tree) else None
            self.whole = self.column_type(self.tree)
        except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise Mismatched("the schema is not one of Avro that is understood here") from None

    def inside(self, name: str) -> Mapping[str, ColumnType | None] | None:
        """Return the column types of the fields of a nested record; ``None`` if it is not a record."""
        at = self._at(name.split("."))
        return None if at is None else self.fields_of(at)

    def aliases(self, path: Iterable[str]) -> Mapping[str, Sequence[str]] | None:
        """Return all fields of the record at a path with their aliases; ``None`` if it is not a record."""
        at = self._at(path)
        return None if at is None else {each["name"]: each.get("aliases", ()) for each in at["fields"]}

    def _at(self, path: Iterable[str]) -> Tree | None:
        """Return the type at a path, if it is a record, or a union of one and null."""
        at = self._without_null(self.tree)
        for part in path:
            if not is_record(at):
                return None
            at = self._without_null(next((each["type"] for each in at["fields"] if each["name"] == part), "null"))
        return at if is_record(at) else None

    def _expanded(self, tree: Tree, space: str) -> Tree:
        """Return the schema with bare primitive types and full names; types with a name are kept in ``_names``."""
        if isinstance(tree, str):
            if tree in _PRIMITIVES:
                return tree
            full = tree if "." in tree or not space else f"{space}.{tree}"
            return {"type": "name", "name": full if full in self.names else _defined_in(tree, self.names)}
        if isinstance(tree, list):
            return [self._expanded(each, space) for each in tree]
        kind = tree["type"]
        if kind in _NAMED:
            return self._defined(tree, kind, space)
        if kind == "array":
            return {"type": kind, "items": self._expanded(tree["items"], space)}
        if kind == "map":
            return {"type": kind, "values": self._expanded(tree["values"], space)}
        if isinstance(kind, str) and kind in _PRIMITIVES:
            return _with_logical(tree, kind)
        return self._expanded(kind, space)

    def _defined(self, tree: dict[str, Any], kind: str, space: str) -> Tree:
        name = str(tree["name"])
        if "." in name:
            space, _, name = name.rpartition(".")
        else:
            given = tree.get("namespace")  # the empty one is that of no namespace
            space = given if isinstance(given, str) else space
        full = f"{space}.{name}" if space else name
        found: dict[str, Any] = {"type": "record" if kind == "error" else kind, "name": full}
        self.names[full] = found
        if kind == "enum":
            found["symbols"] = [str(each) for each in tree["symbols"]]
        elif kind == "fixed":
            found["size"] = int(tree["size"])
            logical = _with_logical(tree, "fixed", found["size"])
            found |= {} if isinstance(logical, str) else {**logical, "type": "fixed"}
        else:
            found["fields"] = []
            for each in tree["fields"]:
                of_field: dict[str, Any] = {"name": str(each["name"]), "type": self._expanded(each["type"], space)}
                aliases = tuple(alias for alias in each.get("aliases") or () if isinstance(alias, str))
                self.has_aliases |= bool(aliases)
                of_field |= {"aliases": aliases} if aliases else {}
                found["fields"].append(of_field | ({"default": each["default"]} if "default" in each else {}))
        return found

    def known(self, tree: Tree) -> Tree:
        """Return the definition of a type that is given by its name; every other type unchanged."""
        return self.names[tree["name"]] if isinstance(tree, dict) and tree["type"] == "name" else tree

    def _without_null(self, tree: Tree) -> Tree:
        """Return the type of a union of it and null; every other type unchanged."""
        tree = self.known(tree)
        if isinstance(tree, list) and len(others := [each for each in tree if each != "null"]) == 1:
            return self.known(others[0])
        return tree

    def fields_of(self, tree: Tree) -> dict[str, ColumnType | None]:
        """Return the column types of a record's fields, in their order."""
        return {each["name"]: self.column_type(each["type"]) for each in tree["fields"]}

    def column_type(self, tree: Tree) -> ColumnType | None:
        """Return the column type for values of a type; ``None`` if they are always null."""
        tree = self.known(tree)
        if isinstance(tree, list):
            kinds = {kind for each in tree if (kind := self.column_type(each)) is not None}
            return next(iter(kinds), None) if len(kinds) < 2 else ColumnType(TypeName.JSON)
        if isinstance(tree, str):
            name = _COLUMNS[tree]
            return None if name is None else ColumnType(name)
        logical = tree.get("logicalType")
        if logical == "decimal":
            return ColumnType.decimal(tree["precision"], tree["scale"])
        return ColumnType(_LOGICAL_COLUMNS[logical] if logical else _COMPLEX_COLUMNS[tree["type"]])

    def is_empty(self, tree: Tree) -> bool:
        """Return whether the values of a type take no bytes: then a few bytes can stand for a huge array."""
        tree = self.known(tree)
        if tree == "null" or (isinstance(tree, dict) and tree.get("size") == 0):
            return True
        if not is_record(tree):
            return False
        name = tree["name"]
        if name not in self._empty:
            self._empty[name] = False  # while its fields are looked at: one that is of its own type has no end
            self._empty[name] = all(self.is_empty(each["type"]) for each in tree["fields"])
        return self._empty[name]


def _all(references: Iterable[Reference]) -> Iterator[Reference]:
    """Yield references after those that they refer to, each name once."""
    seen: set[str] = set()

    def below(some: Iterable[Reference]) -> Iterator[Reference]:
        for each in some:
            yield from below(each.schema.references)
            if each.name not in seen:
                seen.add(each.name)
                yield each

    return below(references)


def _defined_in(name: str, names: Mapping[str, Any]) -> str:
    if name not in names:
        raise KeyError(name)
    return name


def is_record(tree: Tree) -> bool:
    """Return whether a type is a record."""
    return isinstance(tree, dict) and tree["type"] == "record"


def _with_logical(tree: Mapping[str, Any], kind: str, size: int = 0) -> Tree:
    """Return the type with its logical type, if that is known and valid; Avro ignores all others."""
    logical = tree.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision: Any = tree.get("precision")
        scale: Any = tree.get("scale", 0)
        are_whole = isinstance(precision, int) and isinstance(scale, int)
        is_valid = are_whole and 0 < precision <= _MOST_DIGITS and 0 <= scale <= precision
        return {"type": kind, "logicalType": logical, "precision": precision, "scale": scale} if is_valid else kind
    if logical == "uuid" and kind == "fixed":
        return {"type": kind, "logicalType": logical} if size == 16 else kind
    return {"type": kind, "logicalType": logical} if logical in _LOGICAL.get(kind, ()) else kind


_LONGS = ("time-micros", "timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros")
_LOGICAL: dict[str, tuple[str, ...]] = {"int": ("date", "time-millis"), "long": _LONGS, "string": ("uuid",)}
_COLUMNS: dict[str, TypeName | None] = {
    "null": None,
    "boolean": TypeName.BOOLEAN,
    "int": TypeName.INTEGER,
    "long": TypeName.INTEGER,
    "float": TypeName.DOUBLE,
    "double": TypeName.DOUBLE,
    "bytes": TypeName.BYTES,
    "string": TypeName.TEXT,
}
_COMPLEX_COLUMNS = {
    "enum": TypeName.TEXT,
    "fixed": TypeName.BYTES,
    "array": TypeName.JSON,
    "map": TypeName.JSON,
    "record": TypeName.JSON,
}
_LOGICAL_COLUMNS = {
    "uuid": TypeName.TEXT,
    "date": TypeName.DATE,
    "time-millis": TypeName.TEXT,
    "time-micros": TypeName.TEXT,
    "timestamp-millis": TypeName.TIMESTAMP,
    "timestamp-micros": TypeName.TIMESTAMP,
    "local-timestamp-millis": TypeName.TIMESTAMP,
    "local-timestamp-micros": TypeName.TIMESTAMP,
}
