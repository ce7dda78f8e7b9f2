"""Spark pipelines: Kafka records to a DataFrame to a database table. Needs the extra ``tidegate[spark]``."""

from __future__ import annotations

from tidegate.core.policies import CommitMode
from tidegate.spark.pipeline import Pipeline
from tidegate.spark.report import BatchReport, Report
from tidegate.spark.session import SparkOptions

__all__ = ["BatchReport", "CommitMode", "Pipeline", "Report", "SparkOptions"]
