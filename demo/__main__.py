"""`make demo`, or `python -m demo`."""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools import spark_classes

from demo.audit import audit, verdict
from demo.feed import feed
from demo.orders import TOPIC
from demo.picture import draw
from demo.pipeline_file import write_pipeline
from demo.screen import Screen
from demo.trial import Trial
from tidegate import Delivery, TidegateError
from tidegate.java.downloads import show_downloads
from tidegate.sandbox import Kafka
from tidegate.spark.session import connector_jars

_BATCHES = 30  # so many that no driver is done before its kill


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; the exit code."""
    options = _options().parse_args(arguments)
    screen = Screen()
    directory = _fresh(options.directory)
    screen.say(
        "Orders go from Kafka through Spark into SQLite, three times at once: exactly once, with data and position in "
        "one transaction; at least once, data first; at most once, position first. All the while the drivers of the "
        "pipelines are killed with -9 and started again. Every other kill is aimed right behind a COMMIT."
    )
    show_downloads()
    screen.step("starting a Kafka broker, and preparing the start of Spark")
    with Kafka() as kafka, ThreadPoolExecutor(1) as beside:
        prepared = beside.submit(_prepare)
        screen.step(f"producing {options.orders:,} orders to the topic {TOPIC!r}")
        with screen.counting(options.orders, "orders") as tell:
            produced = feed(kafka.bootstrap, options.orders, tell)
        prepared.result()
        screen.step(f"three pipelines; kills for each of them: {options.kills}, and after each the next driver goes on")
        batch = max(1, options.orders // _BATCHES)
        trials = []
        for delivery in Delivery:
            file, database = write_pipeline(directory, delivery, kafka.bootstrap, batch)
            trials.append(Trial(delivery, file, database, options.kills, screen.told))
        _run(trials, screen, produced.count)
    for trial in trials:
        if trial.error is not None:
            screen.say(f"{trial.delivery.value}: {trial.error}", "bold red")
            return 1
    screen.step("the audit: every table against what was produced")
    audits = [audit(trial.delivery, trial.database, produced) for trial in trials]
    screen.table(audits)
    picture = directory / "demo.png"
    draw(trials, audits, picture)
    screen.say(f"The picture is {picture}; the tables are beside it, such as {trials[0].database.name}.")
    if (wrong := verdict(audits)) is not None:
        screen.say(f"The demo failed: {wrong}.", "bold red")
        return 1
    screen.step("the same kills, and only where data and position commit together is every order there once")
    return 0


def _prepare() -> None:
    """Fetch Spark's connector, and keep Spark's classes in a file: each of its starts takes five seconds less."""
    connector_jars()
    if "SPARK_SUBMIT_OPTS" not in os.environ:  # or else the user has chosen how Java starts
        spark_classes.make()


def _run(trials: list[Trial], screen: Screen, produced: int) -> None:
    """Run them to their ends; whatever interrupts this leaves no driver behind."""
    try:
        with screen.watching(trials, produced):
            for trial in trials:
                trial.start()
            for trial in trials:
                trial.join()
    except BaseException:
        screen.step("ending what runs")
        for trial in trials:
            trial.abandon()
        raise


def _fresh(directory: Path) -> Path:
    """The directory, without what the demo of before has left there."""
    directory.mkdir(parents=True, exist_ok=True)
    for delivery in Delivery:
        for file in directory.glob(f"{delivery}*"):
            file.unlink()
    return directory.resolve()


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make demo", description="Kafka, Spark and SQLite, with kill -9, audited.")
    parser.add_argument("--orders", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=4, help="of each driver; every other one is aimed")
    parser.add_argument("--directory", type=Path, default=Path("build/demo"), help="where tables and picture go")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TidegateError as error:  # such as a missing Java
        sys.exit(f"demo: {' '.join(str(error).split())}")
    except KeyboardInterrupt:
        sys.exit(130)
