"""``tidegate run``: run the listeners of an app."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tidegate.app import App
from tidegate.app.configured import configured
from tidegate.cli.codes import ExitCode
from tidegate.cli.failures import reported
from tidegate.cli.loading import load
from tidegate.cli.root import app
from tidegate.cli.watching import EVERYWHERE, LogLevel, health_of, log_to_stderr, serve_metrics, watch
from tidegate.cli.workers import Workers, stop_with_parent
from tidegate.settings import Settings

__all__ = ["run"]

_Target = Annotated[
    str | None,
    typer.Argument(metavar="[MODULE:APP]", help="Where the app is, such as shop:app; without it the settings' sinks."),
]
_WorkerCount = Annotated[int, typer.Option(min=1, help="How many processes share the work.")]
_UntilCaughtUp = Annotated[bool, typer.Option("--until-caught-up", help="Stop at the end of the logs.")]
_Config = Annotated[Path | None, typer.Option(help="The settings; otherwise tidegate.toml here, if there is one.")]
_Level = Annotated[LogLevel, typer.Option(help="From which level on to log.")]
_Port = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Serve metrics and health at this port; each further worker one higher."),
]
_Host = Annotated[str, typer.Option(help="The address to serve them at; otherwise all that this machine has.")]
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
    metrics_host: _Host = EVERYWHERE,
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
            options += ["--metrics-host", metrics_host] if metrics_port is not None else []
            raise typer.Exit(Workers(target, workers, options, metrics_port).run())
        if worker is not None:
            stop_with_parent()
        loaded = configured(Settings.load()) if target is None else load(target)
        if isinstance(loaded, App):
            loaded.worker = worker
        log_to_stderr(log_level)  # now, so that a program's own way of logging goes first
        watch(loaded, metrics=metrics_port is not None)
        if metrics_port is not None:
            serve_metrics(metrics_port, metrics_host, health_of(loaded))
        raise typer.Exit(loaded.run(until_caught_up=until_caught_up) or ExitCode.OK)


def _use(file: Path) -> None:
    """Let the app find its settings in ``file``, here and in the workers; what is wrong with them is told at once."""
    Settings.load(file)
    os.environ["TIDEGATE_CONFIG"] = str(file.resolve())
