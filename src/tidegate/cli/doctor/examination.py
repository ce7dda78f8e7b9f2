"""An examination: every check, in the order in which things are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.app.app import App
from tidegate.app.configured import configured
from tidegate.app.listener import Listener
from tidegate.app.sink import Sink
from tidegate.cli.doctor.machine import check_extra, check_java, check_spark, check_versions
from tidegate.cli.loading import load
from tidegate.core.delivery import Delivery
from tidegate.core.errors import ConfigurationError, TidegateError
from tidegate.core.findings import Finding
from tidegate.kafka.examining import examine_cluster
from tidegate.ledger import Ledger, open_ledger
from tidegate.ledger.examining import examine_ledger
from tidegate.settings import Settings, masked, settings_file

__all__ = ["examine"]


@dataclass(frozen=True)
class _Setup:
    """What is set up here: the cluster, how to come by the ledger, and who reads what."""

    kafka: Mapping[str, Any]
    ledger: Callable[[], Ledger[Any]] | None
    listeners: tuple[Listener, ...] = ()


def examine(target: str | None, config: Path | None, *, spark: bool) -> Iterator[Finding]:
    """Examine the app, or what the settings name; secrets are masked."""
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
        yield Finding.fault("settings", str(error), "mend it; docs/settings.md has every setting")
        return
    file = settings_file(config)
    yield Finding.ok("settings", "no file, only the environment" if file is None else str(file))
    try:
        setup = _of_app(target, settings)
    except TidegateError as error:
        yield Finding.fault("app", str(error), "mend the module, or its name on the command line")
        return
    yield from _packages(setup.listeners)
    yield from _deliveries(setup.listeners)
    yield from _cluster(setup)
    yield from _ledger(setup)


def _of_app(target: str | None, settings: Settings) -> _Setup:
    """The app that is named, or that the settings make; without either the settings alone."""
    if target is None and not settings.sink:
        url = settings.ledger.url
        opens = None if url is None else lambda: open_ledger(url, prefix=settings.ledger.prefix)
        return _Setup(settings.kafka.configuration(), opens)
    app = configured(settings) if target is None else load(target)
    if not isinstance(app, App):
        raise ConfigurationError(f"{target} is of type {type(app).__name__}, and only an App can be examined")
    ledger = app.ledger
    return _Setup(app.kafka, None if ledger is None else lambda: ledger, tuple(app.listeners))


def _packages(listeners: tuple[Listener, ...]) -> Iterator[Finding]:
    if any(isinstance(each.does, Sink) for each in listeners):
        found = [check_extra("tables", module, "a sink") for module in ("pyarrow", "msgspec")]
        yield from filter(None, found)


def _deliveries(listeners: tuple[Listener, ...]) -> Iterator[Finding]:
    """Less than exactly-once is a choice, and one that is easily forgotten."""
    means = {Delivery.AT_LEAST_ONCE: "a crash may repeat records", Delivery.AT_MOST_ONCE: "a crash may lose records"}
    for each in listeners:
        if (chosen := each.spec.delivery) in means:
            said = f"group {each.spec.group!r} is {chosen.value}: {means[chosen]}"
            yield Finding.warning("delivery", said, "leave delivery out, or say exactly-once, unless that is meant")


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
            "no ledger is named: positions are kept in Kafka, and exactly-once is to be had from topic to topic only",
            "set TIDEGATE_LEDGER, or ledger in tidegate.toml, to the URL of the database that the data goes to",
        )
        return
    try:
        ledger = setup.ledger()
    except ConfigurationError as error:
        said, _, advice = str(error).partition("; ")
        yield Finding.fault("ledger", said, advice or "mind the URL of the ledger")
        return
    with ledger:
        yield from examine_ledger(ledger)
