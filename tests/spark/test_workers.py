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

    def archives_known(_: Iterable[int]) -> Iterator[tuple[list[str], list[str], int]]:
        """What Python knows of archives before and after the worker is made ready, and what the user's own says."""
        import importlib
        import importlib.util
        import sys

        def known() -> list[str]:
            return [entry for entry in sys.path_importer_cache if ".zip" in entry or ".jar" in entry]

        importlib.util.find_spec(f"not_{module}")  # Python looks into everything that is on its path
        before = known()
        ready_worker()
        yield before, known(), importlib.import_module(module).PRICE

    context = spark.sparkContext
    context.addPyFile(str(archive))
    for before, after, price in context.parallelize([0, 0], 2).mapPartitions(archives_known).collect():
        assert any("pyspark.zip" in entry for entry in before)
        assert not [entry for entry in after if "pyspark" in entry or "spark-core" in entry]
        assert any(module in entry for entry in after)
        assert price == 7


def test_modules_of_spark_can_still_be_imported(spark: SparkSession) -> None:
    def imports(_: Iterable[int]) -> Iterator[str]:
        import sys

        ready_worker()
        sys.modules.pop("pyspark.sql.observation", None)
        from pyspark.sql.observation import Observation

        yield Observation.__name__

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(imports).collect() == ["Observation"]
