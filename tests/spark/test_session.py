"""Opening Spark: quietly, with the right settings, or with one clear error."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.ports import refused_port

from tidegate.errors import ConfigurationError
from tidegate.java.jars import Jars
from tidegate.java.runtime import find_java
from tidegate.spark.session import SparkOptions, check_session, jars_of, open_session
from tidegate.spark.versions import installed

V1_SOURCES = "spark.sql.sources.useV1SourceList"

TWICE = """
import json
from tidegate.spark.session import SparkOptions, open_session

def told(session):
    context = session.sparkContext
    get = lambda key: context.getConf().get(key, "")
    return [context.master, context.appName, get("spark.shop.colour"), get("spark.shop.odd")]

conf = {"spark.shop.colour": "green", "spark.shop.odd": " a\\\\b=c: #ü\\n!"}
first = open_session(SparkOptions("local[1]", conf=conf))
seen = [told(first)]
first.stop()
second = open_session(SparkOptions("local[2]", name="another"))
seen.append(told(second))
second.stop()
print(json.dumps(seen))
"""

WITHOUT_CONNECTOR = """
from pyspark.sql import SparkSession
from tidegate.errors import ConfigurationError
from tidegate.spark.session import check_session

session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    check_session(session)
except ConfigurationError as error:
    print(error)
session.stop()
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)


def test_sessions_start_without_a_word_and_the_second_has_nothing_of_the_first() -> None:
    result = run(TWICE)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [
        ["local[1]", "tidegate", "green", " a\\b=c: #ü\n!"],
        ["local[2]", "another", "", ""],
    ]
    assert result.stderr == ""


def test_a_session_without_the_connector_is_told_what_is_missing() -> None:
    result = run(WITHOUT_CONNECTOR)
    assert "spark-sql-kafka-0-10 is missing" in result.stdout, result.stderr
    assert f"spark.jars.packages={installed().coordinate.rpartition(':')[0]}:" in result.stdout


def test_the_settings_are_those_that_a_pipeline_needs(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert "kafka" not in str(spark.conf.get(V1_SOURCES))
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sparkContext.getConf().get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.pythonExec == sys.executable


def test_the_check_takes_kafka_off_the_list_of_the_older_sources(spark: SparkSession) -> None:
    before = str(spark.conf.get(V1_SOURCES))
    spark.conf.set(V1_SOURCES, "csv,kafka,json")
    try:
        check_session(spark)
        assert spark.conf.get(V1_SOURCES) == "csv,json"
    finally:
        spark.conf.set(V1_SOURCES, before)


def test_a_process_has_one_session_and_another_is_refused(spark: SparkSession) -> None:
    assert open_session() is spark
    assert open_session(SparkOptions()) is spark
    with pytest.raises(ConfigurationError, match=r"already \('tests' on local\[2\]\).*pass that session"):
        open_session(SparkOptions(master="local[7]"))


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({"spark.master": "yarn"}, "set master=…"),
        ({"spark.app.name": "x"}, "set name=…"),
        ({"spark.remote": "sc://there"}, "not one behind Spark Connect"),
        ({"spark.submit.deployMode": "cluster"}, "start this program there"),
        ({"sql.shuffle.partitions": 3}, "begin with 'spark.'"),
    ],
)
def test_settings_that_cannot_be_are_refused(conf: dict[str, str | int], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        SparkOptions(conf=conf)


def test_the_users_settings_win_and_what_is_hidden_stays_hidden() -> None:
    conf = {"spark.sql.shuffle.partitions": 7, "spark.ui.enabled": True, "spark.redaction.regex": "colour"}
    settings = SparkOptions("local[3]", connector=None, conf=conf).settings()
    assert (settings["spark.sql.shuffle.partitions"], settings["spark.ui.enabled"]) == ("7", "true")
    assert settings["spark.redaction.regex"].startswith("(?:colour)|") and "passw" in settings["spark.redaction.regex"]


def test_options_print_without_their_secrets() -> None:
    text = repr(SparkOptions(conf={"spark.shop.password": "hunter2", "spark.shop.colour": "green"}))
    assert "hunter2" not in text and "green" in text


def test_java_is_looked_for_before_spark_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="there is no bin/java"):
        find_java("Spark")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="none on PATH"):
        find_java("Spark")
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"needs Java 17, and .* is Java 11"):
        find_java("Spark")


@pytest.mark.parametrize("module", ["pyspark", "pandas"])
def test_a_missing_package_is_named_with_its_extra(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    if module == "pyspark":
        monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ConfigurationError, match=rf"need {module}; run: pip install 'tidegate\[spark\]'"):
        open_session()


def test_a_connector_that_cannot_be_fetched_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = f"http://127.0.0.1:{refused_port()}/"
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="none"/><resolvers>'
        f'<ibiblio name="none" m2compatible="true" root="{nobody}"/></resolvers></ivysettings>'
    )
    monkeypatch.setenv("TIDEGATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TIDEGATE_IVY_SETTINGS", str(settings))
    with pytest.raises(ConfigurationError, match="could not be fetched.*needs the network.*give their paths"):
        jars_of("org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0")
    assert not [path for path in (tmp_path / "cache" / "spark").iterdir() if path.suffix != ".lock"]


def test_jars_that_are_there_are_used_without_asking_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")  # no java: nothing can be started
    monkeypatch.delenv("JAVA_HOME", raising=False)
    folder = tmp_path / "spark" / "org.shop_till_1.0"
    folder.mkdir(parents=True)
    (folder / "till-1.0.jar").touch()
    assert jars_of("org.shop:till:1.0") == [folder / "till-1.0.jar"]
    assert SparkOptions(connector="org.shop:till:1.0").settings()["spark.jars"] == str(folder / "till-1.0.jar")


def test_a_connector_that_is_no_coordinate_and_no_file_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="write it as group:artifact:version"):
        SparkOptions(connector="kafka").settings()
    with pytest.raises(ConfigurationError, match="there is no jar /nowhere/a.jar"):
        SparkOptions(connector="/nowhere/a.jar").settings()


def test_a_master_that_does_not_answer_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(ConfigurationError, match="no Spark master answers at spark://127.0.0.1"):
        open_session(SparkOptions(f"spark://127.0.0.1:{refused_port()}"))


def test_a_dependency_that_cannot_be_found_is_replaced_by_the_spare_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    for name, version, needs in (("till", "2.0", "drawer"), ("drawer", "1.0", None), ("lamp", "2.0", "bulb")):
        folder = repository / "org" / "shop" / name / version
        folder.mkdir(parents=True)
        with zipfile.ZipFile(folder / f"{name}-{version}.jar", "w"):
            pass
        dependency = f"<groupId>org.shop</groupId><artifactId>{needs}</artifactId><version>2.0</version>"
        (folder / f"{name}-{version}.pom").write_text(
            f"<project><modelVersion>4.0.0</modelVersion><groupId>org.shop</groupId><artifactId>{name}</artifactId>"
            f"<version>{version}</version>"
            f"{f'<dependencies><dependency>{dependency}</dependency></dependencies>' if needs else ''}</project>"
        )
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="here"/><resolvers>'
        f'<ibiblio name="here" m2compatible="true" root="{repository.as_uri()}/"/></resolvers></ivysettings>'
    )
    monkeypatch.setenv("TIDEGATE_CACHE", str(tmp_path / "cache"))
    spare = "org.shop:drawer:1.0"
    fetched = Jars("till", ("org.shop:till:2.0",), "a shop", spare=spare).fetched(str(settings))
    assert {jar.name for jar in fetched.glob("*.jar")} == {"till-2.0.jar", "drawer-1.0.jar"}
    with pytest.raises(ConfigurationError, match="could not be fetched"):
        Jars("lamp", ("org.shop:lamp:2.0",), "a shop", spare=spare).fetched(str(settings))
