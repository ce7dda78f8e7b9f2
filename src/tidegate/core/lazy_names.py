"""Names that a package offers and imports on first use, so that importing the package costs nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package: it imports a name from its module on first use.

    ``modules`` maps each module, by its name below ``tidegate``, to the names that the package takes from it; under
    ``""`` it has modules of the package itself. The package imports the same names under ``TYPE_CHECKING`` and sets
    ``__getattr__`` otherwise, so a type checker knows them all.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not homes[name]:
            return import_module(f"{package}.{name}")
        found = getattr(import_module(f"tidegate.{homes[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return get
