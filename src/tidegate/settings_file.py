"""Reading of settings: a TOML file, overridden by the environment, becomes dataclasses. Errors name the place."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from tidegate.core import arguments
from tidegate.core.arguments import kind_of
from tidegate.errors import ConfigurationError

__all__: list[str] = []  # for tidegate.settings


def converted(kind: Any, raw: object, place: str, *, from_text: bool) -> Any:
    """Convert ``raw`` to ``kind``. In an environment variable, commas separate several strings."""
    if from_text and kind == tuple[str, ...] and isinstance(raw, str):
        raw = [part.strip() for part in raw.split(",")]
    return arguments.setting(place, kind, raw)


def passed_through(raw: object, place: str) -> str | int | float | bool:
    """Return a setting of another library unchanged; raise if its type is not plain."""
    value = arguments.passed_through(raw)
    if value is None:
        raise unexpected("a string, a number, or true or false", raw, place)
    return value


def unexpected(expected: str, raw: object, place: str) -> ConfigurationError:
    """Return the error that says what was expected at ``place``."""
    return ConfigurationError(f"{place}: expected {expected}, not {arguments.described(raw)}")


Key: TypeAlias = tuple[str, ...]

_PREFIX = "TIDEGATE_"
# These variables are not settings; other code reads them.
_OTHERS = {
    "TIDEGATE_CONFIG",
    "TIDEGATE_CACHE",
    "TIDEGATE_DASHBOARD_TOKEN",
    "TIDEGATE_IVY_SETTINGS",
    "TIDEGATE_TEST_BROKER",
}
# Kubernetes sets such variables in every container if the namespace has a service called tidegate or tidegate-….
_SERVICE_LINK = re.compile(
    r"TIDEGATE_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
_REFERENCE = re.compile(r"(\$?)\$\{([A-Za-z_]\w*)\}")
_SHORT = {("kafka",): "bootstrap", ("ledger",): "url", ("registry",): "url"}  # kafka = "…" sets kafka.bootstrap
_CLIENT = ("kafka", "client")  # a table with the keys of librdkafka
_DOTTED = (_CLIENT, ("spark", "conf"), ("schema",))  # tables whose keys contain dots


class Leaf(NamedTuple):
    """An unconverted value and the file that it came from; ``None`` is the environment."""

    raw: object
    file: str | None


Tree: TypeAlias = "dict[str, Tree | Leaf]"


def plant(file: Path | None, environ: Mapping[str, str], sections: Collection[str] | None = None) -> Tree:
    """Return the tree of ``file``, overridden by ``environ``. With ``sections``, the environment overrides only these
    sections, and only those of them that the file has.
    """
    tree = {} if file is None else _grown(_parsed(file), (), str(file), environ)
    within = None if sections is None else tree.keys() & set(sections)
    for key, value in _variables(environ):
        if within is None or key[0] in within:
            _lay(tree, key, Leaf(value, None))
    return tree


def written(key: Key, file: str | None) -> str:
    """Return the key as written in the file, or, without a file, as an environment variable."""
    return ".".join(key) if file is not None else _PREFIX + "__".join(key).replace(".", "_").upper()


def where(key: Key, node: Tree | Leaf) -> str:
    """Return where a value or a table was set, for an error message."""
    if isinstance(node, Leaf):
        return f"{node.file}: {written(key, node.file)}" if node.file else written(key, None)
    sources = sorted({leaf.file or "the environment" for _, leaf in _leaves(node)})
    return ": ".join(filter(None, [" and ".join(sources), ".".join(key)]))


def _parsed(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file}: is not UTF-8, which TOML has to be") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{file}: is not TOML: {error}") from None
    except ValueError:
        raise ConfigurationError(f"settings: {str(file)!a} is not the name of a file") from None


def _grown(table: Mapping[str, Any], key: Key, file: str, environ: Mapping[str, str]) -> Tree:
    """Convert a table of the file: resolve references, expand short forms, and join keys that contain dots, which TOML
    reads as nested tables.
    """
    tree: Tree = {}
    for name, value in table.items():
        here = (*key, name)
        if isinstance(value, dict):
            inner = _grown(value, here, file, environ)
            tree[name] = {".".join(path): leaf for path, leaf in _leaves(inner)} if here in _DOTTED else inner
        elif isinstance(value, str):
            leaf = Leaf(_resolved(value, f"{file}: {'.'.join(here)}", environ), file)
            tree[name] = {_SHORT[here]: leaf} if here in _SHORT else leaf
        else:
            tree[name] = Leaf(value, file)
    return tree


def _leaves(tree: Tree, key: Key = ()) -> Iterator[tuple[Key, Leaf]]:
    for name, node in tree.items():
        if isinstance(node, Leaf):
            yield (*key, name), node
        else:
            yield from _leaves(node, (*key, name))


def _resolved(text: str, place: str, environ: Mapping[str, str]) -> str:
    """Replace ``${NAME}`` by the environment variable, and the escaped form ``$${NAME}`` by ``${NAME}``."""

    def variable(match: re.Match[str]) -> str:
        if match[1]:
            return f"${{{match[2]}}}"
        if match[2] not in environ:
            raise ConfigurationError(f"{place}: the environment variable {match[2]} is not set")
        return environ[match[2]]

    return _REFERENCE.sub(variable, text)


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[Key, str]]:
    """Iterate over the settings in the environment, outer keys before inner ones."""
    for name in sorted(environ):
        if name.startswith(_PREFIX) and name not in _OTHERS and not _SERVICE_LINK.fullmatch(name):
            key = tuple(name.removeprefix(_PREFIX).lower().split("__"))
            if key[:2] == _CLIENT and len(key) > 2:
                key = (*_CLIENT, ".".join(key[2:]).replace("_", "."))
            yield key, environ[name]


def _lay(tree: Tree, key: Key, leaf: Leaf) -> None:
    if key in _SHORT:  # keep the rest of the table
        key = (*key, _SHORT[key])
    for name in key[:-1]:
        inner = tree.get(name)
        if not isinstance(inner, dict):
            inner = tree[name] = {}
        tree = inner
    tree[key[-1]] = leaf


Model = TypeVar("Model")


def read(
    model: type[Model], file: Path | None, environ: Mapping[str, str], sections: Collection[str] | None = None
) -> Model:
    """Read ``model`` from ``file`` and ``environ``, which :func:`plant` combines; raise for unknown settings."""
    tree = plant(file, environ, sections)
    if not tree and (required := _required(model)):
        raise ConfigurationError(f"{file or 'the environment'}: {required[0]!r} is missing")
    known = list(_keys(model))
    for key, leaf in _unknown(tree, (), known, str(file)):
        raise ConfigurationError(f"{where(key, leaf)}: there is no such setting; {_advice(key, leaf, known)}")
    result: Model = _section(model, tree, (), None)
    return result


def _section(kind: Any, tree: Tree, key: Key, base: Any) -> Any:
    """Create a dataclass from a table; settings that are not in the table come from ``base``."""
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
    """Return the settings that have no default."""
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
        return {name: _entry(kind, leaf, where((*key, name), leaf)) for name, leaf in node.items()}
    if is_dataclass(kind):
        return _section(kind, node, key, default if is_dataclass(default) else None)
    if (either := _table_or_value(kind)) is not None:
        return _section(either, node, key, None)
    raise unexpected(kind_of(kind).expected, {}, where(key, node))


def _entry(kind: Any, node: Tree | Leaf, place: str) -> Any:
    """Return an entry of a mapping, unchanged; a list only where the mapping takes several values."""
    raw, inner = node.raw if isinstance(node, Leaf) else node, get_args(kind)[1]
    if isinstance(raw, list) and get_origin(inner) is Annotated and get_origin(get_args(inner)[0]) is tuple:
        return [passed_through(each, place) for each in raw]
    return passed_through(raw, place)


def _kind(hint: Any) -> tuple[Any, bool]:
    """Return the type of a setting, and whether it may also be ``None``."""
    kinds = get_args(hint)
    if NoneType not in kinds:
        return hint, False
    return next(kind for kind in kinds if kind is not NoneType), True


def _tables_in(kind: Any) -> Any:
    """Return the dataclass for the values of a mapping; ``None`` if they are not dataclasses."""
    inner = get_args(kind)[1] if get_origin(kind) is Mapping else None
    return inner if is_dataclass(inner) else None


def _table_or_value(kind: Any) -> Any:
    """Return the dataclass for a setting that may be a table or true or false; ``None`` if it may not."""
    either = get_args(get_args(kind)[0]) if get_origin(kind) is Annotated else ()
    return next((each for each in either if is_dataclass(each)), None) if bool in either else None


def _keys(model: Any, prefix: Key = ()) -> Iterator[Key]:
    """Iterate over all keys of the model: tables and their settings."""
    hints = get_type_hints(model, include_extras=True)
    for item in fields(model):
        key = (*prefix, item.name)
        yield key
        kind, _ = _kind(hints[item.name])
        if is_dataclass(kind):
            yield from _keys(kind, key)
        elif (either := _table_or_value(kind)) is not None:
            yield from _keys(either, key)
        elif get_origin(kind) is Mapping:
            yield (*key, "*")
            if (inner := _tables_in(kind)) is not None:
                yield from _keys(inner, (*key, "*"))


def _unknown(tree: Tree, key: Key, known: list[Key], file: str) -> Iterator[tuple[Key, Leaf]]:
    """Iterate over the values at any depth of ``tree`` that the model does not know."""
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
        elif place not in known or _below(place, known):  # otherwise a table stands for a plain value: a wrong type
            yield from _unknown(node, here, known, file)


def _place(key: Key, known: list[Key]) -> Key:
    """Return the key in the model that matches ``key``, with ``*`` for names that the user chose."""
    place: Key = ()
    for name in key:
        place = (*place, "*" if (*place, "*") in known else name)
    return place


def _below(place: Key, known: list[Key]) -> list[Key]:
    return [other for other in known if other[:-1] == place]


def _advice(key: Key, leaf: Leaf, known: list[Key]) -> str:
    """Suggest the nearest known key, as written in the same place; if none is near, list the known keys."""
    beside = {other[-1]: (*key[:-1], other[-1]) for other in _below(_place(key[:-1], known), known)}
    if near := get_close_matches(key[-1], beside, 1):
        return f"did you mean {written(beside[near[0]], leaf.file)}?"
    anywhere = {"_".join(other[start:]): other for other in known for start in range(len(other))}
    if near := get_close_matches("_".join(key), anywhere, 1):
        return f"did you mean {written(anywhere[near[0]], leaf.file)}?"
    return f"known are {', '.join(beside or sorted({other[0] for other in known}))}"
