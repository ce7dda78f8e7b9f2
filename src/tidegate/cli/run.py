"""``tidegate run``: run the listeners of an app, in one process or several."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from queue import SimpleQueue
from types import FrameType, ModuleType
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias

import typer

from tidegate.app import App
from tidegate.app.app import configured
from tidegate.cli.options import ExitCode, app, reported
from tidegate.cli.serve import LOOPBACK, LogLevel, health_of, log_to_stderr, serve_metrics, watch
from tidegate.errors import ConfigurationError, TidegateError
from tidegate.settings import Settings

__all__ = ["Runnable", "Workers", "load", "run", "stop_with_parent"]


class Runnable(Protocol):
    """Anything that ``tidegate run`` can run: an App, or an object that behaves like one."""

    def run(self, *, until_caught_up: bool = False) -> int | None:
        """Run, and return an exit code."""


def load(target: str) -> Runnable:
    """Import the module, with the current directory on the path, and return its app."""
    name, colon, attribute = target.partition(":")
    if not (name and colon and attribute):
        raise ConfigurationError(f"{target!r} does not name an app; write MODULE:APP, such as shop:app")
    if "/" in name or name.startswith("."):
        raise ConfigurationError(
            f"{name!r} is a path and not a module; run in the folder of the module, "
            "and write MODULE:APP, such as shop:app"
        )
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
            hint = "; write a module without .py, such as shop:app" if name.endswith(".py") else ""
            raise ConfigurationError(
                f"there is no module {error.name!r} in {Path.cwd()} or on the Python path{hint}"
            ) from None
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> ConfigurationError:
    if isinstance(error, SyntaxError):  # the traceback ends in Python's import, not in the file
        where, what = f"{error.filename}, line {error.lineno}", error.msg
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where, what = f"{last.filename}, line {last.lineno}", str(error)
    return ConfigurationError(f"the module {name!r} cannot be imported: {type(error).__name__}: {what} ({where})")


def _instead(found: object, missing: str) -> str:
    public = [name for name in dir(found) if not name.startswith("_")]
    apps = [name for name in public if _is_app(getattr(found, name, None))]
    near = get_close_matches(missing, public, 1) or apps[:1]
    return f"; did you mean {near[0]!r}?" if near else ""


def _is_app(value: object) -> bool:
    return callable(getattr(value, "run", None)) and not isinstance(value, (type, ModuleType))


_STOPPING = (signal.SIGTERM, signal.SIGINT)


class _Exited(NamedTuple):
    """A worker ended. ``code`` is that of :class:`subprocess.Popen`: negative for a signal."""

    worker: subprocess.Popen[bytes]
    code: int


_Event: TypeAlias = "_Exited | signal.Signals"


class Workers:
    """Runs ``tidegate run`` in ``count`` child processes.

    They are started afresh instead of forked, since librdkafka does not survive a fork. A worker that ends is not
    restarted. If one fails, the others are asked to stop, and its exit code becomes that of the whole run. A signal
    asks all workers to stop; a second signal kills them.
    """

    def __init__(self, target: str | None, count: int, options: Sequence[str], metrics_port: int | None = None) -> None:
        if metrics_port is not None and metrics_port + count - 1 > 65535:
            raise ConfigurationError(
                f"{count} workers need {count} ports for metrics, from {metrics_port} on, up to 65535"
            )
        self._commands = [
            [
                sys.executable,
                "-P",
                "-m",
                "tidegate.cli",
                "run",
                *([] if target is None else [target]),
                "--worker",
                str(number),
                *options,
            ]
            + ([] if metrics_port is None else ["--metrics-port", str(metrics_port + number)])
            for number in range(count)
        ]
        self._running: set[subprocess.Popen[bytes]] = set()
        self._events: SimpleQueue[_Event] = SimpleQueue()  # put() is safe in a signal handler
        self._stopping = False
        self._signalled = False
        self._code: int = ExitCode.OK

    def run(self) -> int:
        """Start the workers, wait until all have ended, and return the exit code."""
        before = {number: signal.signal(number, self._on_signal) for number in _STOPPING}
        try:
            for command in self._commands:
                self._start(command)
            while self._running:
                self._take(self._events.get())
        finally:
            self._kill()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._events.put(signal.Signals(number))

    def _start(self, command: list[str]) -> None:
        # With its own session, a worker gets Ctrl-C at the terminal only from here, and not twice.
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603 - our own program
        self._running.add(worker)
        threading.Thread(target=lambda: self._events.put(_Exited(worker, worker.wait())), daemon=True).start()

    def _take(self, event: _Event) -> None:
        if isinstance(event, _Exited):
            self._ended(event)
        elif self._signalled:
            self._code = 128 + event
            self._kill()
        else:
            self._signalled = True
            self._stop()

    def _ended(self, event: _Exited) -> None:
        self._running.discard(event.worker)
        if event.worker.stdin is not None:
            event.worker.stdin.close()
        # A worker that gets SIGTERM before it has installed its handler dies by the signal, and has done nothing yet.
        is_clean = event.code == 0 or (self._stopping and event.code == -signal.SIGTERM)
        if not is_clean and not self._code:
            self._code = event.code if event.code > 0 else 128 - event.code
            if self._running and not self._stopping:
                typer.echo(f"error: a worker ended with exit code {self._code}; stopping the others", err=True)
        if self._code:
            self._stop()

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            for worker in self._running:
                worker.send_signal(signal.SIGTERM)

    def _kill(self) -> None:
        for worker in self._running:
            worker.kill()


def stop_with_parent() -> None:
    """Stop this worker when its parent process ends: the pipe at its standard input then has no writer and closes."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="tidegate-parent").start()


_Target = Annotated[
    str | None,
    typer.Argument(metavar="[MODULE:APP]", help="Where the app is, such as shop:app; without it the settings' sinks."),
]
_WorkerCount = Annotated[int, typer.Option(min=1, help="How many processes share the work.")]
_UntilCaughtUp = Annotated[bool, typer.Option("--until-caught-up", help="Stop at the end of the logs.")]
_Config = Annotated[Path | None, typer.Option(help="The settings file. Default: tidegate.toml here, if it exists.")]
_Level = Annotated[LogLevel, typer.Option(help="From which level on to log.")]
_Port = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Serve metrics and health at this port; each further worker one higher."),
]
_Host = Annotated[str, typer.Option(help="The address to serve them at; 0.0.0.0 means every address of this machine.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Log errors only: no progress, no summary, no live view.")]
_Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
_Worker = Annotated[int | None, typer.Option("--worker", hidden=True)]


@app.command("run")
def run(
    target: _Target = None,
    *,
    workers: _WorkerCount = 1,
    until_caught_up: _UntilCaughtUp = False,
    config: _Config = None,
    log_level: _Level = LogLevel.INFO,
    metrics_port: _Port = None,
    metrics_host: _Host = LOOPBACK,
    quiet: _Quiet = False,
    debug: _Debug = False,
    worker: _Worker = None,
) -> None:
    """Run the listeners of an app, or the sinks of tidegate.toml, until SIGTERM or SIGINT, or until all caught up."""
    with reported(debug=debug):
        if config is not None:
            _use(config)
        if workers > 1:
            options = ["--log-level", log_level.value]
            options += ["--until-caught-up"] if until_caught_up else []
            options += ["--debug"] if debug else []
            options += ["--quiet"] if quiet else []
            options += ["--metrics-host", metrics_host] if metrics_port is not None else []
            raise typer.Exit(Workers(target, workers, options, metrics_port).run())
        if worker is not None:
            stop_with_parent()
        loaded = configured(Settings.load()) if target is None else load(target)
        if isinstance(loaded, App):
            loaded.worker = worker
        log_to_stderr(
            LogLevel.ERROR if quiet else log_level
        )  # after loading, so that logging set up by the app takes precedence
        watch(loaded, metrics=metrics_port is not None)
        if metrics_port is not None:
            serve_metrics(metrics_port, metrics_host, health_of(loaded))
        more = {"quiet": quiet} if isinstance(loaded, App) else {}
        raise typer.Exit(loaded.run(until_caught_up=until_caught_up, **more) or ExitCode.OK)


def _use(file: Path) -> None:
    """Make the app and its workers read their settings from ``file``. Raises at once if the file is invalid."""
    Settings.load(file)
    os.environ["TIDEGATE_CONFIG"] = str(file.resolve())
