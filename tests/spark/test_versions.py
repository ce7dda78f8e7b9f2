"""Each version of Spark that is named has everything it needs, and others are refused. `make matrix` runs on all."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from tools import spark_matrix

from tidegate import Table
from tidegate.errors import ConfigurationError
from tidegate.spark import ExactlyOnce, Pipeline, SparkOptions
from tidegate.spark.session import check_session, connector_jars
from tidegate.spark.versions import VERSIONS, installed, supported

ROOT = Path(__file__).resolve().parents[2]
ANSI = "spark.sql.ansi.enabled"
EVERY = pytest.mark.parametrize("number", VERSIONS)

OWN_SESSION = """
import sys
from pyspark.sql import SparkSession
from tidegate.errors import ConfigurationError
from tidegate.spark.session import check_session

session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for line in sys.stdin:
    exec(line)
    try:
        check_session(session)
        print("taken")
    except ConfigurationError as error:
        print(error)
session.stop()
"""

DEFAULTS = """
import json
from tidegate.spark.session import SparkOptions, open_session

session = open_session(SparkOptions("local[1]", conf={"spark.shop.colour": "green"}))
conf = session.sparkContext.getConf()
print(json.dumps([conf.get(key) for key in ("spark.shop.colour", "spark.shop.size")]))
session.stop()
"""


def another() -> str:
    """A release of a supported version that is not that of the PySpark here."""
    return next(f"{number}.0" for number in VERSIONS if number != installed().number)


@EVERY
def test_a_version_that_is_named_has_a_lock_a_place_in_the_matrix_and_a_row_in_the_docs(number: str) -> None:
    lock = (ROOT / "requirements" / f"spark-{number}.txt").read_text()
    release = re.search(rf"^pyspark==({re.escape(number)}\.\d+) ", lock, re.MULTILINE)
    assert release and "--hash=sha256:" in lock
    makefile = re.search(r"^SPARKS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert makefile and makefile[1].split() == list(VERSIONS)
    page = (ROOT / "docs" / "spark.md").read_text()
    assert re.search(
        rf"^\| {re.escape(number)} \| {re.escape(release[1])} \|.*`{VERSIONS[number].coordinate}`", page, re.M
    )


def test_the_extra_installs_what_is_supported_and_nothing_else() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["spark"]
    major, minor = map(int, list(VERSIONS)[-1].split("."))
    assert f"pyspark>={next(iter(VERSIONS))},<{major}.{minor + 1}" in extra


def test_no_other_module_asks_for_a_version() -> None:
    asked = ("pyspark.__version__", "session.version", "spark.version")
    asking = set()
    for path in (ROOT / "src" / "tidegate").rglob("*.py"):
        if "spark" in path.read_text():
            tree = ast.parse(path.read_text())
            said = {id(part) for text in ast.walk(tree) if isinstance(text, ast.JoinedStr) for part in ast.walk(text)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and ast.unparse(node) in asked and id(node) not in said:
                    asking.add(path.name)
    assert asking == {"versions.py"}


@pytest.mark.parametrize("number", ["3.4.4", "4.3.0", "5.0.0", "40.1", "", "snapshot"])
def test_a_version_that_is_not_supported_is_refused_with_those_that_are(number: str) -> None:
    with pytest.raises(ConfigurationError, match=r"runs on Spark 3\.5, 4\.0, 4\.1 and 4\.2, and the PySpark here is"):
        supported(number, "PySpark here")


@pytest.mark.parametrize("release", ["3.5.7", "4.0.0.dev1", "4.1.1", "4.2.1-amzn-0"])
def test_releases_of_a_supported_version_are_taken(release: str) -> None:
    assert supported(release, "PySpark here") is VERSIONS[release[:3]]


def test_a_version_that_is_not_supported_is_refused_before_spark_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    with pytest.raises(ConfigurationError, match=r"the PySpark here is 4\.3\.0; run: pip install"):
        SparkOptions().settings()


def test_pyspark_of_another_version_than_the_session_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark, "__version__", another())
    with pytest.raises(ConfigurationError, match=rf"this session is {spark.version}; .*pyspark=={spark.version}'"):
        check_session(spark)


def test_a_python_without_distutils_is_refused_for_the_one_that_imports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"imports distutils.*run Python 3\.11, or: pip install setuptools"):
        VERSIONS["3.5"].check_python()
    VERSIONS["4.0"].check_python()


def test_pipelines_refuse_sql_that_hides_its_errors_and_queries_compute_as_they_like(spark: SparkSession) -> None:
    assert spark.conf.get(ANSI) == "true"
    spark.conf.set(ANSI, "false")
    try:
        with pytest.raises(ConfigurationError, match=r"is off in this Spark session.*session\.conf\.set"):
            check_session(spark)
        check_session(spark, reads_kafka=False)
    finally:
        spark.conf.set(ANSI, "true")
    with pytest.raises(ConfigurationError, match="wrong numbers and nulls"):
        SparkOptions(conf={ANSI: False})
    assert SparkOptions(conf={ANSI: "true"}).conf


def test_a_users_session_is_refused_for_its_connector_or_taken(tmp_path: Path) -> None:
    fitting = connector_jars()
    own = next(jar for jar in fitting if jar.name.startswith("spark-sql-kafka"))
    scala, number = installed().scala, installed().number
    older = tmp_path / f"spark-sql-kafka-0-10_{scala}-{another()}.jar"
    strange = tmp_path / f"spark-sql-kafka-0-10_{'2.13' if scala == '2.12' else '2.12'}-{number}.0.jar"
    others = [str(jar) for jar in fitting if jar is not own]
    said = []
    for jar in (older, strange, own):
        if jar is not own:
            shutil.copy(own, jar)
        arguments = f"--jars {','.join([str(jar), *others])} pyspark-shell"
        result = subprocess.run(
            [sys.executable, "-c", OWN_SESSION],
            input=f'session.conf.set("{ANSI}", True)\n',
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": arguments},
        )
        assert result.returncode == 0, result.stderr
        said.append(result.stdout.strip())
    for jar, message in zip((older, strange), said, strict=False):
        assert f"connector {jar.name} does not fit Spark {number}." in message
        assert f"take spark-sql-kafka-0-10_{scala} in version {number}." in message
    assert said[2] == "taken"


def test_the_machines_own_defaults_of_spark_hold_where_nothing_else_is_said(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.shop.colour  red\nspark.shop.size  large\\\n")
    result = subprocess.run(
        [sys.executable, "-c", DEFAULTS],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path)},
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == ["green", "large"]


class Remote:
    """Has the name of a session of Spark Connect, which has no more of what is needed than this."""

    __module__ = "pyspark.sql.connect.session"


def test_a_session_of_spark_connect_is_refused_by_name(tmp_path: Path) -> None:
    ledger = f"sqlite:///{tmp_path}/a.db"
    with pytest.raises(ConfigurationError, match="this is a session of Spark Connect"):
        Pipeline("orders", Table("orders"), group="etl", kafka="127.0.0.1:1", ledger=ledger, spark=Remote())
    frame = type("Frame", (), {"sparkSession": Remote()})()
    with pytest.raises(ConfigurationError, match="this is a session of Spark Connect"):
        ExactlyOnce(Table("orders"), ledger=ledger, name="q")(frame, 0)


def test_the_matrix_picks_versions_and_refuses_others() -> None:
    assert [version.number for version in spark_matrix.wanted(["4.2", "3.5"])] == ["4.2", "3.5"]
    assert spark_matrix.wanted([]) == list(VERSIONS.values())
    with pytest.raises(ConfigurationError, match=r"no Spark '4' here, but 3\.5, 4\.0, 4\.1, 4\.2"):
        spark_matrix.wanted(["4"])


def test_the_matrix_fails_with_a_test_and_with_a_run_that_had_none(tmp_path: Path) -> None:
    results = tmp_path / "results.xml"

    def outcome() -> spark_matrix.Outcome:
        return spark_matrix.Outcome("4.0.5", "3.11.7", "a:b:1", *spark_matrix.counted(results), 1.0)

    assert not outcome().good
    suite = '<testsuites><testsuite tests="{}" skipped="{}" failures="{}" errors="{}"/></testsuites>'
    for numbers, is_good in (((9, 2, 0, 0), True), ((9, 2, 1, 0), False), ((9, 2, 0, 1), False), ((0, 0, 0, 0), False)):
        results.write_text(suite.format(*numbers))
        assert outcome().good is is_good
    results.write_text(suite.format(9, 2, 1, 1))
    assert spark_matrix.table([outcome()]).splitlines()[1].split() == ["4.0.5", "3.11.7", "a:b:1", "5", "2", "2", "1"]
