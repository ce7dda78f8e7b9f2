"""Loading the app that a command is to run: ``module:attribute``."""

from __future__ import annotations

import importlib
import sys
import traceback
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from tidegate.core.errors import ConfigurationError, TidegateError

__all__ = ["Runnable", "load"]


class Runnable(Protocol):
    """What can be run: an App, or what behaves like one."""

    def run(self, *, until_caught_up: bool = False) -> int | None:
        """Run, and return an exit code."""


def load(target: str) -> Runnable:
    """Import the module, with the current directory on the path, and return its app."""
    name, colon, attribute = target.partition(":")
    if not (name and colon and attribute):
        raise ConfigurationError(f"{target!r} does not name an app; write MODULE:APP, such as shop:app")
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    found: Any = _imported(name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{name!r} has no {attribute!r}{_instead(found, part)}")
        found = getattr(found, part)
    if isinstance(found, type):
        raise ConfigurationError(f"{target} is a class; name an instance of it, such as app = {found.__name__}(…)")
    if not callable(getattr(found, "run", None)):
        raise ConfigurationError(f"{target} is not an App but of type {type(found).__name__}, which cannot be run")
    app: Runnable = found
    return app


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except TidegateError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"there is no module {error.name!r} in {Path.cwd()} or on the Python path"
            ) from None
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> ConfigurationError:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return ConfigurationError(
        f"the module {name!r} cannot be imported: {type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
    )


def _instead(found: object, missing: str) -> str:
    public = [name for name in dir(found) if not name.startswith("_")]
    apps = [name for name in public if _is_app(getattr(found, name, None))]
    near = get_close_matches(missing, public, 1) or apps[:1]
    return f"; did you mean {near[0]!r}?" if near else ""


def _is_app(value: object) -> bool:
    return callable(getattr(value, "run", None)) and not isinstance(value, (type, ModuleType))
