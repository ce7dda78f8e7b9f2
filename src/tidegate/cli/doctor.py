"""``tidegate doctor`` and ``config``: check the setup on this machine, and show the settings in effect."""

from __future__ import annotations

import json as text_of
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.app.app import App, configured
from tidegate.app.listener import Listener, SinkListener
from tidegate.cli.options import Config, Debug, ExitCode, Json, app, reported
from tidegate.cli.output import harmless
from tidegate.cli.run import load
from tidegate.core.findings import Clock, Finding, Verdict, this_machine
from tidegate.core.masks import masked
from tidegate.core.policies import Delivery
from tidegate.core.schemas import SchemaRegistry
from tidegate.errors import ConfigurationError, RegistryUnavailable, TidegateError
from tidegate.java.runtime import find_java
from tidegate.kafka.doctor import examine_cluster
from tidegate.kafka.registry import RegistryClient, open_registry
from tidegate.ledger import open_ledger
from tidegate.ledger.ledger import Ledger
from tidegate.settings import Held, Settings, held_settings, settings_file

__all__ = ["check_extra", "check_java", "check_spark", "check_versions", "doctor", "examine", "examine_ledger", "show"]


def examine_ledger(ledger: Ledger[Any], now: Clock = this_machine) -> Iterator[Finding]:
    """Yield the findings about a ledger. They end after one that makes further checks pointless."""
    yield from ledger.examine(now)


def check_versions() -> Finding:
    """Return the versions of Tidegate, Python and the Kafka client."""
    client = version("confluent-kafka")
    return Finding.ok(
        "versions", f"tidegate {version('tidegate')}, Python {platform.python_version()}, confluent-kafka {client}"
    )


def check_extra(extra: str, module: str, needed_for: str) -> Finding | None:
    """Return a fault if a package is missing that the setup needs."""
    if find_spec(module) is not None:
        return None
    said = f"{needed_for} needs the package {module}, which is not installed"
    return Finding.fault("packages", said, f"run: pip install 'tidegate[{extra}]'")


def check_java(*, is_needed: bool) -> Finding:
    """Check that Java is installed. Pipelines and the sandbox need it."""
    try:
        return Finding.ok("java", str(find_java("a pipeline")))
    except ConfigurationError as error:
        said, _, advice = str(error).partition(". ")
        if is_needed:
            return Finding.fault("java", said, advice)
        return Finding.warning("java", f"{said}; listeners do without it, pipelines and the sandbox do not", advice)


def check_spark() -> Iterator[Finding]:
    """Check what a pipeline needs in addition to Java."""
    if missing := check_extra("spark", "pyspark", "a pipeline"):
        yield missing
        return
    from tidegate.spark.versions import installed  # noqa: PLC0415 - Spark is large

    try:
        installed()
        yield Finding.ok("packages", f"pyspark {version('pyspark')}")
    except ConfigurationError as error:
        said, _, advice = str(error).partition("; ")
        yield Finding.fault("packages", said, advice)


@dataclass(frozen=True)
class _Setup:
    """The setup to check: the Kafka settings, a function that opens the ledger, and the listeners."""

    kafka: Mapping[str, Any]
    ledger: Callable[[], Ledger[Any]] | None
    listeners: tuple[Listener, ...] = ()
    registry: SchemaRegistry | None = None


def examine(target: str | None, config: Path | None, *, spark: bool) -> Iterator[Finding]:
    """Yield the findings about the app or, without one, about what the settings name. Secrets are masked."""
    for finding in _examine(target, config, spark=spark):
        yield finding._replace(said=masked(finding.said), advice=finding.advice and masked(finding.advice))


def _examine(target: str | None, config: Path | None, *, spark: bool) -> Iterator[Finding]:
    yield check_versions()
    yield check_java(is_needed=spark)
    if spark:
        yield from check_spark()
    try:
        settings = Settings.load(config)
    except ConfigurationError as error:
        yield Finding.fault("settings", str(error), "fix it; docs/settings.md has every setting")
        return
    file = settings_file(config)
    yield Finding.ok("settings", "no file, only the environment" if file is None else str(file))
    try:
        setup = _of_app(target, settings)
    except TidegateError as error:
        in_settings = "fix the settings; docs/settings.md has every setting"
        hint = in_settings if target is None else "fix the module, or its name on the command line"
        yield Finding.fault("app", str(error), hint)
        return
    yield from _packages(setup.listeners)
    yield from _deliveries(setup.listeners)
    yield from _cluster(setup)
    yield from _ledger(setup)
    yield from _registry(setup)


def _of_app(target: str | None, settings: Settings) -> _Setup:
    """Return the setup of the named app or of the sinks in the settings; without either, of the settings alone."""
    if target is None and not settings.sink:
        url = settings.ledger.url
        opens = None if url is None else lambda: open_ledger(url, prefix=settings.ledger.prefix)
        return _Setup(settings.kafka.configuration(), opens, registry=open_registry(settings.registry))
    app = configured(settings) if target is None else load(target)
    if not isinstance(app, App):
        raise ConfigurationError(f"{target} is of type {type(app).__name__}, and only an App can be examined")
    ledger = app.ledger
    return _Setup(app.kafka, None if ledger is None else lambda: ledger, tuple(app.listeners), app.registry)


def _packages(listeners: tuple[Listener, ...]) -> Iterator[Finding]:
    if any(isinstance(each, SinkListener) for each in listeners):
        yield from filter(None, [check_extra("tables", "pyarrow", "a sink")])


def _deliveries(listeners: tuple[Listener, ...]) -> Iterator[Finding]:
    """Warn of deliveries weaker than exactly-once, because such a setting is easily forgotten."""
    means = {Delivery.AT_LEAST_ONCE: "a crash may repeat records", Delivery.AT_MOST_ONCE: "a crash may lose records"}
    for each in listeners:
        if (chosen := each.spec.delivery) in means:
            said = f"group {each.spec.group!r} is {chosen.value}: {means[chosen]}"
            yield Finding.warning("delivery", said, "leave delivery out, or set exactly-once, unless this is intended")


def _cluster(setup: _Setup) -> Iterator[Finding]:
    if "bootstrap.servers" not in setup.kafka:
        yield Finding.fault(
            "broker", "no broker is named", "set TIDEGATE_KAFKA, or kafka in tidegate.toml, to host:9092"
        )
        return
    topics = [each.spec.topics for each in setup.listeners]
    named = {name for each in topics for name in (*each.names, *(tp.topic for tp in each.partitions))}
    yield from examine_cluster(setup.kafka, named, [each.pattern for each in topics if each.pattern is not None])


def _ledger(setup: _Setup) -> Iterator[Finding]:
    if setup.ledger is None:
        yield Finding.warning(
            "ledger",
            "no ledger is named: positions are kept in Kafka, and exactly-once is possible from topic to topic only",
            "set TIDEGATE_LEDGER, or ledger in tidegate.toml, to the URL of the database that the data goes to",
        )
        return
    try:
        ledger = setup.ledger()
    except ConfigurationError as error:
        said, _, advice = str(error).partition("; ")
        yield Finding.fault("ledger", said, advice or "check the URL of the ledger")
        return
    with ledger:
        yield from examine_ledger(ledger)


def _registry(setup: _Setup) -> Iterator[Finding]:
    """Check the schema registry, if one is named."""
    registry = setup.registry
    if not isinstance(registry, RegistryClient):
        return
    try:
        count = len(registry.subjects())
    except RegistryUnavailable as error:
        yield Finding.fault("registry", str(error), "check the address, the login and the certificates in [registry]")
        return
    yield Finding.ok("registry", f"{registry} answers; it has {count} subject{'' if count == 1 else 's'}")


_Target = Annotated[
    str | None,
    typer.Argument(metavar="[MODULE:APP]", help="The app, such as shop:app; without it what the settings name."),
]
_Spark = Annotated[bool, typer.Option("--spark", help="Also check Java and PySpark, which a pipeline needs.")]


@app.command("doctor")
def doctor(
    target: _Target = None,
    *,
    spark: _Spark = False,
    json: Json = False,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Check whether the setup can work, and show how to fix what cannot. Changes nothing."""
    with reported(debug=debug):
        if config is not None:
            os.environ["TIDEGATE_CONFIG"] = str(config.resolve())
        found = []
        for finding in examine(target, config, spark=spark):
            found.append(finding)
            if not json:
                typer.echo(_lines(finding))
        counts = {verdict.value: sum(each.verdict is verdict for each in found) for verdict in Verdict}
        if json:
            typer.echo(text_of.dumps({"findings": [each._asdict() for each in found], "counts": counts}, indent=2))
        else:
            typer.echo(", ".join(f"{count} {name}" for name, count in counts.items()))
        raise typer.Exit(ExitCode.FAILED if counts[Verdict.FAULT] else ExitCode.OK)


def _lines(finding: Finding) -> str:
    line = f"{finding.verdict.value:<8} {finding.check:<10} {harmless(finding.said)}"
    return line if finding.advice is None else f"{line}\n{'':<20}→ {harmless(finding.advice)}"


settings = typer.Typer(no_args_is_help=True, help="The settings.")
app.add_typer(settings, name="config")


@settings.command("show")
def show(*, json: Json = False, config: Config = None, debug: Debug = False) -> None:
    """Show the value of every setting, and where it comes from: the file, the environment, or the default."""
    with reported(debug=debug):
        held = held_settings(config)
        if json:
            typer.echo(text_of.dumps({"settings": [each._asdict() for each in held]}, indent=2, default=str))
            return
        width = max(len(each.key) for each in held)
        values = [harmless(_said(each.value)) for each in held]
        wide = max(map(len, values))
        for each, value in zip(held, values, strict=True):
            typer.echo(f"{each.key:<{width}} = {value:<{wide}}  # {_origin(each)}")


def _said(value: Any) -> str:
    return "none" if value is None else text_of.dumps(value, ensure_ascii=False, default=str)


def _origin(each: Held) -> str:
    return each.origin if each.where is None else f"{each.origin} {each.where}"
