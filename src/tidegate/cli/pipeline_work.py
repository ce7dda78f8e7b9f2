"""Running and checking pipelines: what of the commands needs Spark to be installed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from rich.console import Console

from tidegate.cli.pipeline_progress import progress_for
from tidegate.cli.stopping import run_until_stopped
from tidegate.observe import Observer
from tidegate.settings import PipelineSettings
from tidegate.spark.checking import checked
from tidegate.spark.configured import configured, opened
from tidegate.spark.report import Report

__all__ = ["check_pipeline", "run_pipeline"]


def run_pipeline(said: PipelineSettings, turns: Mapping[str, Any], observers: Sequence[Observer]) -> Report:
    """Run it, showing how far it is, until it is done or a signal stops it."""
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of every connection that it closes
    progress = progress_for(Console(stderr=True), said.group, f"{', '.join(said.topics)} → {said.into.table}")
    with closing(opened(said.ledger)) as ledger:
        pipeline = configured(said, ledger, observers=observers, on_batch=progress)
        with progress:
            return run_until_stopped(lambda: pipeline.run(**turns), pipeline.stop)


def check_pipeline(said: PipelineSettings) -> Iterator[str]:
    """A line for each thing that is as it should be; the first that is not is raised."""
    with closing(opened(said.ledger)) as ledger:
        pipeline = configured(said, ledger)
        yield from checked(said, pipeline.spec.table, ledger)
