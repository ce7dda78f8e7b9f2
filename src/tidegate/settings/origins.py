"""Origins: where each of the settings that hold was said."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tidegate.settings.settings import Settings, settings_file
from tidegate.settings.tree import Key, Leaf, Tree, plant, written

__all__ = ["Held", "held_settings"]


class Held(NamedTuple):
    """A setting as it holds: its key, its value without secrets, and who said so.

    ``origin`` is ``"default"``, ``"environment"`` or ``"file"``; ``where`` the variable or the file.
    """

    key: str
    value: Any
    origin: str
    where: str | None


def held_settings(path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> list[Held]:
    """Every setting that :meth:`Settings.load` gives with the same arguments, in the order of the model."""
    environ = os.environ if environ is None else environ
    settings = Settings.load(path, environ)
    tree = plant(settings_file(path, environ), environ)
    return [_held(key, value, tree, environ) for key, value in _flat(settings.shown())]


def _flat(shown: Mapping[str, Any], key: Key = ()) -> Iterator[tuple[Key, Any]]:
    for name, value in shown.items():
        if isinstance(value, Mapping):
            yield from _flat(value, (*key, name))
        else:
            yield (*key, name), value


def _held(key: Key, value: Any, tree: Tree, environ: Mapping[str, str]) -> Held:
    node: Tree | Leaf | None = tree
    for name in key:
        node = node.get(name) if isinstance(node, dict) else node
    shown = list(value) if isinstance(value, tuple) else value
    if not isinstance(node, Leaf):
        return Held(".".join(key), shown, "default", None)
    if node.file is None:
        names = (written(key, None), written(key[:-1], None))  # the second is the short form
        return Held(".".join(key), shown, "environment", next(name for name in names if name in environ))
    return Held(".".join(key), shown, "file", str(Path(node.file)))
