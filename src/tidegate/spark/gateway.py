"""The Java machine of the driver: started without secrets in its arguments and without chatter on the terminal."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tidegate.core.errors import ConfigurationError
from tidegate.settings.masking import masked

__all__ = ["Errors", "launched"]

_TAIL_LINES = 15
_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"


class Errors:
    """What the Java machine says on its standard error: kept while a session starts, and passed on once it has."""

    def __init__(self, source: IO[bytes]) -> None:
        self._kept: deque[str] = deque(maxlen=200)
        self._passing = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(source,), name="tidegate-spark-errors", daemon=True)
        self._reader.start()

    def keep(self) -> None:
        """Keep what is said from now on: a session is starting."""
        self._passing.clear()

    def pass_on(self) -> None:
        """From now on everything goes to this process's standard error; what was said before is forgotten."""
        self._passing.set()
        self._kept.clear()

    def tail(self) -> str:
        """The end of what was said while starting."""
        self._reader.join(1.0)  # a machine that has died closes the pipe; one that lives is not waited for
        return masked("\n".join(list(self._kept)[-_TAIL_LINES:]))

    def _read(self, source: IO[bytes]) -> None:
        with source:
            for line in source:
                if self._passing.is_set():
                    # It may be closed or missing; and whoever stopped reading here would stop the Java machine.
                    with suppress(OSError, ValueError, AttributeError):
                        sys.stderr.write(line.decode(errors="replace"))
                elif text := line.decode(errors="replace").strip():
                    self._kept.append(text)


def launched(conf: Mapping[str, str]) -> tuple[Any, Errors | None]:
    """A new Java machine with these settings, and its errors; or the one that ``spark-submit`` has started for us."""
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - an extra

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return launch_gateway(), None  # type: ignore[no-untyped-call]
    reading, writing = os.pipe()
    errors = Errors(os.fdopen(reading, "rb"))
    try:
        with _properties(conf):
            streams = {"stderr": writing, "stdout": subprocess.DEVNULL}
            return launch_gateway(popen_kwargs=streams), errors  # type: ignore[no-untyped-call]
    except Exception as error:
        os.close(writing)
        writing = -1
        raise ConfigurationError(f"Spark could not be started; its last words:\n{errors.tail()}") from error
    finally:
        if writing >= 0:
            os.close(writing)


@contextmanager
def _properties(conf: Mapping[str, str]) -> Iterator[None]:
    """Hand the settings over in a file: PySpark would write them into the arguments of the process, for all to see."""
    before = os.environ.get(_SUBMIT_ARGS)
    with tempfile.TemporaryDirectory(prefix="tidegate-spark-") as folder:
        file = Path(folder, "spark.properties")
        file.write_text("".join(f"{_escaped(key, key=True)}={_escaped(text)}\n" for key, text in conf.items()))
        arguments = f"--properties-file {shlex.quote(str(file))} --load-spark-defaults {before or 'pyspark-shell'}"
        os.environ[_SUBMIT_ARGS] = arguments
        try:
            yield
        finally:
            if before is None:
                del os.environ[_SUBMIT_ARGS]
            else:
                os.environ[_SUBMIT_ARGS] = before


_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


def _escaped(text: str, *, key: bool = False) -> str:
    """As Java reads properties."""
    special = _ESCAPES | ({mark: f"\\{mark}" for mark in "=:#! "} if key else {})
    escaped = "".join(special.get(mark, mark) for mark in text)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped
