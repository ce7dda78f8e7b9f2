"""Python workers that do not read Spark's archives again for every task."""

from __future__ import annotations

import uuid
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from tidegate.spark.workers import ready_worker


def test_archives_of_spark_are_forgotten_and_those_of_the_user_stay(spark: SparkSession, tmp_path: Path) -> None:
    module = f"till_{uuid.uuid4().hex}"
    archive = tmp_path / f"{module}.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(f"{module}.py", "PRICE = 7\n")

    def price(_: Iterable[int]) -> Iterator[int]:
        import importlib

        ready_worker()
        yield importlib.import_module(module).PRICE

    def archives_known(_: Iterable[int]) -> Iterator[tuple[list[str], list[str]]]:
        """What Python knows of archives when the task has begun, and after it was made ready."""
        import sys

        before = [entry for entry in sys.path_importer_cache if ".zip" in entry or ".jar" in entry]
        ready_worker()
        yield before, [entry for entry in sys.path_importer_cache if ".zip" in entry or ".jar" in entry]

    context = spark.sparkContext
    context.addPyFile(str(archive))
    assert context.parallelize([0, 0], 2).mapPartitions(price).collect() == [7, 7]
    before, after = zip(*context.parallelize([0, 0], 2).mapPartitions(archives_known).collect(), strict=True)
    assert any("pyspark.zip" in entry for entries in before for entry in entries)
    assert not [entry for entries in after for entry in entries if "pyspark" in entry or "spark-core" in entry]
    assert all(any(module in entry for entry in entries) for entries in after)


def test_modules_of_spark_can_still_be_imported(spark: SparkSession) -> None:
    def imports(_: Iterable[int]) -> Iterator[str]:
        import sys

        ready_worker()
        sys.modules.pop("pyspark.sql.observation", None)
        from pyspark.sql.observation import Observation

        yield Observation.__name__

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(imports).collect() == ["Observation"]
