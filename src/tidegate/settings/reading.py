"""Reading: a tree of values becomes a model of dataclasses; what does not fit is an error that says where and why."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from tidegate.core.arguments import kind_of
from tidegate.core.errors import ConfigurationError
from tidegate.settings.tree import Key, Leaf, Tree, plant, where, written
from tidegate.settings.values import converted, passed_through, unexpected

__all__ = ["read"]

Model = TypeVar("Model")


def read(
    model: type[Model], file: Path | None, environ: Mapping[str, str], sections: Collection[str] | None = None
) -> Model:
    """The model, filled from ``file`` and then from ``environ``, or from it only in ``sections`` that the file has."""
    tree = plant(file, environ, sections)
    if not tree and (required := _required(model)):
        raise ConfigurationError(f"{file or 'the environment'}: {required[0]!r} is missing")
    known = list(_keys(model))
    for key, leaf in _unknown(tree, (), known, str(file)):
        raise ConfigurationError(f"{where(key, leaf)}: there is no such setting; {_advice(key, leaf, known)}")
    result: Model = _section(model, tree, (), None)
    return result


def _section(kind: Any, tree: Tree, key: Key, base: Any) -> Any:
    """A dataclass from a table; what the table leaves out is as in ``base``."""
    hints = get_type_hints(kind, include_extras=True)
    defaults = {item.name: item.default for item in fields(kind)}
    values = {name: _value(hints[name], node, (*key, name), defaults[name]) for name, node in tree.items()}
    if base is None and (missing := [name for name in _required(kind) if name not in values]):
        raise ConfigurationError(f"{where(key, tree)}: {missing[0]!r} is missing")
    try:
        return kind(**values) if base is None else replace(base, **values)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where(key, tree)}: {error}") from None


def _required(kind: Any) -> list[str]:
    """The settings that have no default."""
    return [item.name for item in fields(kind) if item.default is item.default_factory is MISSING]


def _value(hint: Any, node: Tree | Leaf, key: Key, default: Any) -> Any:
    kind, is_optional = _kind(hint)
    if isinstance(node, Leaf):
        if is_optional and isinstance(node.raw, str) and node.raw.strip().lower() == "none":
            return None
        if is_dataclass(kind) or get_origin(kind) is Mapping:
            raise unexpected("a table", node.raw, where(key, node))
        return converted(kind, node.raw, where(key, node), from_text=node.file is None)
    if (inner := _tables_in(kind)) is not None:
        return {name: _value(inner, table, (*key, name), None) for name, table in node.items()}
    if get_origin(kind) is Mapping:
        return {
            name: passed_through(leaf.raw if isinstance(leaf, Leaf) else leaf, where((*key, name), leaf))
            for name, leaf in node.items()
        }
    if is_dataclass(kind):
        return _section(kind, node, key, default if is_dataclass(default) else None)
    raise unexpected(kind_of(kind).expected, {}, where(key, node))


def _kind(hint: Any) -> tuple[Any, bool]:
    """The type of a setting, and whether it may also be none."""
    kinds = get_args(hint)
    if NoneType not in kinds:
        return hint, False
    return next(kind for kind in kinds if kind is not NoneType), True


def _tables_in(kind: Any) -> Any:
    """The dataclass that the tables of a mapping are read as, if they are."""
    inner = get_args(kind)[1] if get_origin(kind) is Mapping else None
    return inner if is_dataclass(inner) else None


def _keys(model: Any, prefix: Key = ()) -> Iterator[Key]:
    """Every key of the model: tables, and what is in them."""
    hints = get_type_hints(model, include_extras=True)
    for item in fields(model):
        key = (*prefix, item.name)
        yield key
        kind, _ = _kind(hints[item.name])
        if is_dataclass(kind):
            yield from _keys(kind, key)
        elif get_origin(kind) is Mapping:
            yield (*key, "*")
            if (inner := _tables_in(kind)) is not None:
                yield from _keys(inner, (*key, "*"))


def _unknown(tree: Tree, key: Key, known: list[Key], file: str) -> Iterator[tuple[Key, Leaf]]:
    """The values, wherever they are below ``tree``, that the model has no place for."""
    for name, node in tree.items():
        here = (*key, name)
        place = _place(here, known)
        if place[-1] == "*" and (isinstance(node, Leaf) or not _below(place, known)):
            continue
        if isinstance(node, Leaf):
            if place not in known:
                yield here, node
        elif not node and place not in known:
            yield here, Leaf(node, file)  # only a file can have an empty table
        elif place not in known or _below(place, known):  # otherwise it is no table: a wrong type
            yield from _unknown(node, here, known, file)


def _place(key: Key, known: list[Key]) -> Key:
    """The key in the model that stands for ``key``: with ``*`` for a name that the user chose."""
    place: Key = ()
    for name in key:
        place = (*place, "*" if (*place, "*") in known else name)
    return place


def _below(place: Key, known: list[Key]) -> list[Key]:
    return [other for other in known if other[:-1] == place]


def _advice(key: Key, leaf: Leaf, known: list[Key]) -> str:
    """The nearest known key, as it would be written in the same place."""
    beside = {other[-1]: (*key[:-1], other[-1]) for other in _below(_place(key[:-1], known), known)}
    if near := get_close_matches(key[-1], beside, 1):
        return f"did you mean {written(beside[near[0]], leaf.file)}?"
    anywhere = {"_".join(other[start:]): other for other in known for start in range(len(other))}
    if near := get_close_matches("_".join(key), anywhere, 1):
        return f"did you mean {written(anywhere[near[0]], leaf.file)}?"
    return f"known are {', '.join(beside or sorted({other[0] for other in known}))}"
