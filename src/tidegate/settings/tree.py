"""The tree of what a TOML file and the environment say, laid over each other; each value knows where it was said."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tidegate.core.errors import ConfigurationError

__all__ = ["Key", "Leaf", "Tree", "plant", "where", "written"]

Key: TypeAlias = tuple[str, ...]

_PREFIX = "TIDEGATE_"
# These are said to others than the model.
_OTHERS = {
    "TIDEGATE_CONFIG",
    "TIDEGATE_CACHE",
    "TIDEGATE_DASHBOARD_TOKEN",
    "TIDEGATE_IVY_SETTINGS",
    "TIDEGATE_TEST_BROKER",
}
# Kubernetes puts the address of a service called tidegate, or tidegate-…, into every container of its namespace.
_SERVICE_LINK = re.compile(
    r"TIDEGATE_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
_REFERENCE = re.compile(r"(\$?)\$\{([A-Za-z_]\w*)\}")
_SHORT = {("kafka",): "bootstrap", ("ledger",): "url"}  # kafka = "…" says kafka.bootstrap
_CLIENT = ("kafka", "client")  # a table whose keys are librdkafka's
_DOTTED = (_CLIENT, ("spark", "conf"), ("schema",))  # tables whose keys have dots in them


class Leaf(NamedTuple):
    """A value as it was found, and the file that it was found in; ``None`` is the environment."""

    raw: object
    file: str | None


Tree: TypeAlias = "dict[str, Tree | Leaf]"


def plant(file: Path | None, environ: Mapping[str, str], sections: Collection[str] | None = None) -> Tree:
    """The tree of ``file``, with what ``environ`` sets laid over it: over everything, or over those of the
    ``sections`` that the file has.
    """
    tree = {} if file is None else _grown(_parsed(file), (), str(file), environ)
    within = None if sections is None else tree.keys() & set(sections)
    for key, value in _variables(environ):
        if within is None or key[0] in within:
            _lay(tree, key, Leaf(value, None))
    return tree


def written(key: Key, file: str | None) -> str:
    """A key as it is written in the file, or as a variable of the environment."""
    return ".".join(key) if file is not None else _PREFIX + "__".join(key).replace(".", "_").upper()


def where(key: Key, node: Tree | Leaf) -> str:
    """Where a value or a table was said, for an error."""
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


def _grown(table: Mapping[str, Any], key: Key, file: str, environ: Mapping[str, str]) -> Tree:
    """A table of the file: references resolved, short forms written out, librdkafka's keys put together again."""
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
    """``${NAME}`` is the variable of that name; ``$${NAME}`` stands for itself."""

    def variable(match: re.Match[str]) -> str:
        if match[1]:
            return f"${{{match[2]}}}"
        if match[2] not in environ:
            raise ConfigurationError(f"{place}: the environment variable {match[2]} is not set")
        return environ[match[2]]

    return _REFERENCE.sub(variable, text)


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[Key, str]]:
    """What the environment sets, outer keys before inner ones."""
    for name in sorted(environ):
        if name.startswith(_PREFIX) and name not in _OTHERS and not _SERVICE_LINK.fullmatch(name):
            key = tuple(name.removeprefix(_PREFIX).lower().split("__"))
            if key[:2] == _CLIENT and len(key) > 2:
                key = (*_CLIENT, ".".join(key[2:]).replace("_", "."))
            yield key, environ[name]


def _lay(tree: Tree, key: Key, leaf: Leaf) -> None:
    if key in _SHORT:  # the rest of the table stays as it is
        key = (*key, _SHORT[key])
    for name in key[:-1]:
        inner = tree.get(name)
        if not isinstance(inner, dict):
            inner = tree[name] = {}
        tree = inner
    tree[key[-1]] = leaf
