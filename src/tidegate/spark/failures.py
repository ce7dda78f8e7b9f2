"""Failures of Spark, as a person wants them: what went wrong, in a line, without the trace of its machinery."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.core.errors import ConfigurationError, TidegateError

__all__ = ["JobFailed", "job"]

_PYTHON = re.compile(r"^(?P<kind>[\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Fenced)\b.*)$", re.MULTILINE)
_CAUSE = re.compile(r"Caused by: (?:[\w$.]+\.)?(?P<what>\w+(?:Exception|Error)?: .+)")
_LONG = 400


class JobFailed(TidegateError):
    """A job of Spark failed: of whatever nature, so to try again may help."""


@contextmanager
def job(what: str) -> Iterator[None]:
    """Raise what Spark raises as errors of ours: what can never work, or what may work the next time."""
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # noqa: PLC0415 - an extra
    from pyspark.errors import AnalysisException, ParseException, PySparkException  # noqa: PLC0415

    try:
        yield
    except (AnalysisException, ParseException) as error:
        raise ConfigurationError(f"{what}: Spark cannot make sense of it: {_short(str(error))}") from error
    except Py4JJavaError as error:
        raise JobFailed(f"{what}: {_cause(str(error.java_exception.toString()), str(error))}") from error
    except PySparkException as error:
        raise JobFailed(f"{what}: {_cause(str(error), str(error))}") from error
    except (Py4JNetworkError, Py4JError, ConnectionError, EOFError) as error:
        raise JobFailed(f"{what}: the connection to Spark broke: {_short(str(error))}") from error


def _cause(first: str, trace: str) -> str:
    """The innermost cause: of Python if there is one, or else of Java."""
    python = _PYTHON.findall(trace.partition("Traceback (most recent call last)")[2])
    if python:
        return _short(python[-1])
    causes = _CAUSE.findall(trace)
    return _short(causes[-1] if causes else first)


def _short(text: str) -> str:
    line = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    return line if len(line) <= _LONG else line[: _LONG - 1] + "…"
