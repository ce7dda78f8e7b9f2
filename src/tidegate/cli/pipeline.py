"""``tidegate pipeline``: run the pipeline that a file describes, or check the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import Config, Debug, ExitCode, app, reported
from tidegate.cli.serve import LOOPBACK, LogLevel, log_to_stderr, serve_metrics
from tidegate.core.text import seconds_of
from tidegate.errors import ConfigurationError
from tidegate.java.downloads import show_downloads
from tidegate.observe import LoggingObserver, ObservedHealth, Observer, OpenTelemetryObserver, PrometheusObserver
from tidegate.settings import PipelineSettings, Settings

if TYPE_CHECKING:
    from tidegate.spark.report import Report

__all__ = ["as_json", "check", "run", "summary", "write_text"]


_SHOWN = 12  # positions; the JSON report has all


def as_json(report: Report) -> str:
    """Return the report as JSON."""
    return json.dumps(report.as_json(), indent=2)


def write_text(file: Path, text: str) -> None:
    """Write text to a file; raise a :class:`ConfigurationError` if that fails."""
    try:
        file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"the report cannot be written to {file}: {error.strerror}") from None


def summary(report: Report) -> str:
    """Return the report as a few lines of text."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    rate = report.records / report.seconds if report.seconds else 0.0
    yield f"{report.group}: {report.stopped}" if report.stopped else report.group
    took = f"{report.batches:,} batches and {report.seconds:.1f} s: {rate:,.0f} a second"
    yield f"  records       {report.records:,} in {took}"
    yield f"  rows          {report.rows:,}"
    yield f"  dead letters  {report.dead_letters:,}"
    yield f"  lag           {report.lag:,}"
    if report.fenced or report.already_done:
        yield f"  fenced        {report.fenced:,}, already done {report.already_done:,}"
    positions = sorted(report.positions.items())
    for number, (partition, position) in enumerate(positions[:_SHOWN]):
        yield f"  {'' if number else 'positions':<13} {partition} {position:,}"
    if len(positions) > _SHOWN:
        yield f"  {'':<13} and {len(positions) - _SHOWN:,} more"


pipelines = typer.Typer(no_args_is_help=True, help="Kafka → DataFrame → table, on Spark, as a file describes it.")
app.add_typer(pipelines, name="pipeline")

_EXTRA = ("pyspark", "py4j", "pyarrow")

_File = Annotated[Path, typer.Argument(metavar="FILE", help="What to run, such as orders.toml.")]
_Once = Annotated[bool, typer.Option("--once", help="Run one micro-batch and stop.")]
_AvailableNow = Annotated[bool, typer.Option("--available-now", help="Stop at the ends that the logs have now.")]
_Every = Annotated[
    str | None, typer.Option(metavar="TIME", help="How often to begin a micro-batch, such as 500ms or 1s.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
_Report = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report into a file, as JSON.")]
_Level = Annotated[LogLevel, typer.Option(help="From which level on to log.")]
_Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Serve metrics and health at this port.")]
_Host = Annotated[str, typer.Option(help="The address to serve them at; 0.0.0.0 means every address of this machine.")]


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
    metrics_host: _Host = LOOPBACK,
    debug: Debug = False,
) -> None:
    """Run a pipeline until SIGTERM or SIGINT, or as far as its options say; then report what it did.

    tidegate pipeline run orders.toml --available-now
    """
    with reported(debug=debug):
        settings = PipelineSettings.load(file, config=config)
        turns = _turns(settings, once=once, available_now=available_now, every=every)
        log_to_stderr(log_level)
        show_downloads()
        work = _work()
        observers: list[Observer] = [LoggingObserver()]
        if Settings.load(config).observe.traces:
            observers.append(OpenTelemetryObserver())
        if metrics_port is not None:
            health = ObservedHealth()
            serve_metrics(metrics_port, metrics_host, health)
            observers += [PrometheusObserver(), health]
        done = work.run_pipeline(settings, turns, observers)
        if report is not None:
            write_text(report, as_json(done))
        typer.echo(as_json(done) if json else summary(done))
        raise typer.Exit(ExitCode.OK)


@pipelines.command("check")
def check(file: _File, *, config: Config = None, debug: Debug = False) -> None:
    """Look whether a pipeline could run: its file, its topics, its ledger and its table. Nothing is read or written."""
    with reported(debug=debug):
        settings = PipelineSettings.load(file, config=config)
        log_to_stderr(LogLevel.ERROR)
        for line in _work().check_pipeline(settings):
            typer.echo(line)


def _turns(settings: PipelineSettings, *, once: bool, available_now: bool, every: str | None) -> dict[str, Any]:
    """Return when micro-batches run, as the command line says, or else the file."""
    chosen = {"once": once, "available_now": available_now, "every": every}
    options: dict[str, Any] = {name: value for name, value in chosen.items() if value}
    if len(options) > 1:
        first, second = (f"--{name.replace('_', '-')}" for name in list(options)[:2])
        raise ConfigurationError(f"{first} and {second} contradict each other; give one")
    if not options:
        held = {name: getattr(settings.run, name) for name in chosen}
        options = {name: value for name, value in held.items() if value is not None and value is not False}
    if "every" in options:
        options["every"] = seconds_of(options["every"])
    return options


def _work() -> ModuleType:
    """Import the module that needs Spark; raise if a package is missing."""
    try:
        from tidegate.cli import pipeline_run  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        raise ConfigurationError(
            f"pipelines need {error.name}, which is not installed; run: pip install 'tidegate[spark]'"
        ) from None
    return pipeline_run
