"""Aliases: fields that a schema has renamed go where their former names lead, if nothing has their new ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tidegate.tables.feed import Clash, Known

__all__ = ["Aliases", "Renames", "original", "renamed", "renames_of"]

Aliases: TypeAlias = Callable[[tuple[str, ...]], "Mapping[str, Sequence[str]] | None"]
"""Returns all fields of the record at a path with their former names; ``None`` if there is no record."""


class Rename(NamedTuple):
    """The name that a field gets, and what is renamed within it."""

    name: str
    inside: Renames


Renames: TypeAlias = "Mapping[str, Rename]"
"""The fields of a record that are renamed, or within which others are."""


def renames_of(aliases: Aliases, known: Known, path: tuple[str, ...] = ()) -> Renames:
    """Return which fields are renamed so that they have known names.

    A field keeps its name if that is known, and gets a former one if that is known and no other field has it.
    """
    fields = aliases(path)
    if not fields:
        return {}
    given = dict(zip(fields, fields, strict=True))
    try:
        meant = {field: name for name, field in (known.matched(given) if not path else given).items()}
    except Clash:
        return {}
    taken = set(meant.values())
    found: dict[str, Rename] = {}
    for field, own in meant.items():
        name = own
        if own not in known.inside:
            former = (_known(known, alias, exactly=bool(path)) for alias in fields[field])
            name = next((each for each in former if each is not None and each not in taken), own)
            taken.add(name)
        below = known.inside.get(name)
        inside = {} if below is None else renames_of(aliases, below, (*path, field))
        if name != own or inside:
            found[field] = Rename(name, inside)
    return found


def _known(known: Known, alias: str, *, exactly: bool) -> str | None:
    name = alias if exactly else next(iter(known.matched({alias: None})))
    return name if name in known.inside else None


def renamed(value: Any, renames: Renames) -> Any:
    """Return a decoded record with its fields renamed."""
    if not renames or not isinstance(value, Mapping):
        return value
    found = {}
    for name, each in value.items():
        rename = renames.get(name)
        found[name if rename is None else rename.name] = each if rename is None else renamed(each, rename.inside)
    return found


def original(path: tuple[str, ...], renames: Renames) -> tuple[str, ...]:
    """Return the path in the record as it was written."""
    for field, rename in renames.items():
        if path and rename.name == path[0]:
            return (field, *original(path[1:], rename.inside))
    return path
