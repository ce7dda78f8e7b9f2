"""``tidegate pipeline``: run the pipeline that a file describes, or check the file."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from tidegate.cli.codes import ExitCode
from tidegate.cli.connecting import Config, Debug
from tidegate.cli.failures import reported
from tidegate.cli.pipeline_summary import as_json, summary, write_text
from tidegate.cli.root import app
from tidegate.cli.watching import EVERYWHERE, LogLevel, log_to_stderr, serve_metrics
from tidegate.core.durations import seconds_of
from tidegate.core.errors import ConfigurationError
from tidegate.observe import LoggingObserver, ObservedHealth, Observer, PrometheusObserver
from tidegate.settings import PipelineSettings

__all__ = ["check", "run"]

pipelines = typer.Typer(no_args_is_help=True, help="Kafka → DataFrame → table, on Spark, as a file describes it.")
app.add_typer(pipelines, name="pipeline")

_EXTRA = ("pyspark", "py4j", "pyarrow", "msgspec")

_File = Annotated[Path, typer.Argument(metavar="FILE", help="What to run, such as orders.toml.")]
_Once = Annotated[bool, typer.Option("--once", help="Run one micro-batch and stop.")]
_AvailableNow = Annotated[bool, typer.Option("--available-now", help="Stop at the ends that the logs have now.")]
_Every = Annotated[str | None, typer.Option(metavar="TIME", help="Begin a micro-batch so often, such as 500ms or 1s.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
_Report = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report into a file, as JSON.")]
_Level = Annotated[LogLevel, typer.Option(help="From which level on to log.")]
_Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Serve metrics and health at this port.")]
_Host = Annotated[str, typer.Option(help="The address to serve them at; otherwise all that this machine has.")]


@pipelines.command("run")
def run(
    file: _File,
    *,
    once: _Once = False,
    available_now: _AvailableNow = False,
    every: _Every = None,
    json: _Json = False,
    report: _Report = None,
    config: Config = None,
    log_level: _Level = LogLevel.INFO,
    metrics_port: _Port = None,
    metrics_host: _Host = EVERYWHERE,
    debug: Debug = False,
) -> None:
    """Run a pipeline until SIGTERM or SIGINT, or as far as it is told to; then report what it did.

    tidegate pipeline run orders.toml --available-now
    """
    with reported(debug=debug):
        said = PipelineSettings.load(file, config=config)
        turns = _turns(said, once=once, available_now=available_now, every=every)
        log_to_stderr(log_level)
        work = _work()
        observers: list[Observer] = [LoggingObserver()]
        if metrics_port is not None:
            health = ObservedHealth()
            serve_metrics(metrics_port, metrics_host, health)
            observers += [PrometheusObserver(), health]
        done = work.run_pipeline(said, turns, observers)
        if report is not None:
            write_text(report, as_json(done))
        typer.echo(as_json(done) if json else summary(done))
        raise typer.Exit(ExitCode.OK)


@pipelines.command("check")
def check(file: _File, *, config: Config = None, debug: Debug = False) -> None:
    """Look whether a pipeline could run: its file, its topics, its ledger and its table. Nothing is read or written."""
    with reported(debug=debug):
        said = PipelineSettings.load(file, config=config)
        log_to_stderr(LogLevel.ERROR)
        for line in _work().check_pipeline(said):
            typer.echo(line)


def _turns(said: PipelineSettings, *, once: bool, available_now: bool, every: str | None) -> dict[str, Any]:
    """How often, as the command line says, or else as the file says."""
    chosen = {"once": once, "available_now": available_now, "every": every}
    options: dict[str, Any] = {name: value for name, value in chosen.items() if value}
    if len(options) > 1:
        first, second = (f"--{name.replace('_', '-')}" for name in list(options)[:2])
        raise ConfigurationError(f"{first} and {second} contradict each other; give one")
    if not options:
        held = {name: getattr(said.run, name) for name in chosen}
        options = {name: value for name, value in held.items() if value is not None and value is not False}
    if "every" in options:
        options["every"] = seconds_of(options["every"])
    return options


def _work() -> ModuleType:
    """What needs Spark, if it is installed."""
    try:
        from tidegate.cli import pipeline_work  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        raise ConfigurationError(
            f"pipelines need {error.name}, which is not installed; run: pip install 'tidegate[spark]'"
        ) from None
    return pipeline_work
