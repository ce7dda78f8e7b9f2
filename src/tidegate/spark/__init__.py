"""Spark: pipelines from Kafka to a table, and queries of Structured Streaming. Needs the extra ``tidegate[spark]``."""

from __future__ import annotations

from tidegate.core.policies import CommitMode
from tidegate.spark.pipeline import Pipeline
from tidegate.spark.query import ExactlyOnce
from tidegate.spark.report import BatchReport, Report
from tidegate.spark.session import SparkOptions

__all__ = ["BatchReport", "CommitMode", "ExactlyOnce", "Pipeline", "Report", "SparkOptions"]
