"""The Spark session of a pipeline: its options, its jars, its JVM, and how it is opened."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

from tidegate.core.arguments import Accepts, Label, convert_arguments, described, passed_through
from tidegate.core.masks import Masked, masked
from tidegate.core.text import is_text
from tidegate.errors import ConfigurationError
from tidegate.java.jars import Jars, pyspark_jars
from tidegate.java.runtime import find_java
from tidegate.settings import SparkSettings
from tidegate.spark.versions import SparkVersion, check_versions, installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Errors",
    "SparkOptions",
    "check_session",
    "connector_jars",
    "jars_of",
    "launched",
    "open_session",
    "refuse_remote",
]


_SPARE = "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0"
"""Some mirrors lack newer releases. The connector of 4.2 runs with this one."""

_COORDINATE = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+")
_VERSIONED = re.compile(r"(?P<name>.+?)-\d.*\.jar")


def jars_of(coordinate: str, settings: str | None = None) -> list[Path]:
    """Return the jars of ``group:artifact:version`` and of its dependencies, without those that Spark already has."""
    if not _COORDINATE.fullmatch(coordinate):
        raise ConfigurationError(f"{coordinate!r} is no Maven coordinate; write it as group:artifact:version")
    jars = Jars(
        f"spark/{coordinate.replace(':', '_')}",
        (coordinate,),
        needed_by="Spark",
        excluded="org.apache.hadoop",  # Spark has it, and the connector would fetch another 50 MB copy
        spare=_SPARE,
        otherwise="Without any, fetch them elsewhere and give their paths, separated by commas, instead of the name. ",
    )
    return sorted(jars.fetched(settings, unless=_is_sparks_own).glob("*.jar"))


def _is_sparks_own(jar: Path) -> bool:
    return _artifact(jar) in {_artifact(own) for own in pyspark_jars().glob("*.jar")}


def _artifact(jar: Path) -> str:
    match = _VERSIONED.fullmatch(jar.name)
    return match["name"] if match else jar.stem


def connector_jars(settings: str | None = None) -> list[Path]:
    """Return the jars of Spark's own connector to Kafka, in the release that fits the PySpark here."""
    return jars_of(installed().coordinate, settings)


_DEFAULT = SparkSettings()
_AUTO = "auto"

_SECRETS = r"(?i)secret|passw|token|credential|access[.]?key|jaas|[.]pem$|keystore|truststore|ssl[.]key|ledger"
_REFUSED = {
    "spark.master": "set master=… of SparkOptions",
    "spark.app.name": "set name=… of SparkOptions",
    "spark.remote": "a pipeline's driver is this process, not one behind Spark Connect; set master=… of SparkOptions",
    "spark.api.mode": "a pipeline's driver is this process, not one behind Spark Connect",
    "spark.submit.deployMode": "a pipeline's driver is this process; to run it in a cluster, start this program there",
}


def _conf(given: Any) -> dict[str, Any] | None:
    if not isinstance(given, Mapping) or not all(is_text(key) for key in given):
        return None
    for key, value in given.items():
        if passed_through(value) is None:
            raise ConfigurationError(f"{key!r}: expected a string, a number, or true or false, not {described(value)}")
    return dict(given)


@dataclass(frozen=True, repr=False)
class SparkOptions(Masked):
    """How a pipeline opens Spark: by default on this machine, with one task for each core.

    ``connector`` is ``"auto"`` for the one that fits the PySpark here, or a Maven coordinate: it is fetched once. Or it
    is the paths of the jars, separated by commas; or ``None`` if the cluster already has them. ``conf`` holds Spark's
    own settings; they override Tidegate's.
    """

    master: Label = _DEFAULT.master
    connector: Label | None = _DEFAULT.connector
    conf: Annotated[Mapping[str, str | int | float | bool], Accepts("a mapping of Spark's settings", _conf)] = field(
        default_factory=dict
    )
    name: Label = "tidegate"

    def __post_init__(self) -> None:
        convert_arguments(self)
        for key in self.conf:
            if not key.startswith("spark."):
                raise ConfigurationError(f"conf: {key!r} is not a setting of Spark: those begin with 'spark.'")
            if reason := _REFUSED.get(key):
                raise ConfigurationError(f"conf: the Spark setting {key!r} is refused: {reason}")
        if _text(self.conf.get(_ANSI, True)).lower() != "true":
            raise ConfigurationError(f"conf: {_ANSI} has to be on: {_HIDDEN}")

    @property
    def local(self) -> bool:
        """Whether the driver and the executors are one process."""
        return re.fullmatch(r"local(\[.*\])?", self.master) is not None

    @property
    def cores(self) -> int:
        """The number of tasks that run at once, as far as ``master`` tells; otherwise 1."""
        number = re.match(r"local\[(\d+)", self.master)
        if number:
            return int(number.group(1))
        return (os.cpu_count() or 1) if self.local and "[" in self.master else 1

    def settings(self) -> dict[str, str]:
        """Return all settings that Spark is started with. Fetches the connector."""
        own = {key: _text(value) for key, value in self.conf.items()}
        jars = [own.pop("spark.jars", ""), *map(str, self._connector_jars(own))]
        limit, _, most = installed().batch_limit
        settings = {limit: most, **_DEFAULTS, **self._on_this_machine(), **own}
        settings["spark.master"], settings["spark.app.name"] = self.master, self.name
        settings["spark.jars"] = ",".join(filter(None, jars))
        for key in ("spark.redaction.regex", "spark.sql.redaction.options.regex"):
            # The user's patterns are added to ours, so our secrets stay hidden.
            settings[key] = f"(?:{own[key]})|{_SECRETS}" if key in own else _DEFAULTS[key]
        return settings

    def _connector_jars(self, conf: Mapping[str, str]) -> list[Path]:
        if self.connector is None or "spark-sql-kafka" in conf.get("spark.jars.packages", ""):
            return []
        ivy = conf.get("spark.jars.ivySettings")
        if self.connector == _AUTO:
            return connector_jars(ivy)
        if not self.connector.endswith(".jar"):
            return jars_of(self.connector, ivy)
        jars = [Path(path.strip()) for path in self.connector.split(",")]
        for jar in jars:
            if not jar.is_file():
                raise ConfigurationError(f"there is no jar {jar}, which 'connector' of SparkOptions names")
        return jars

    def _on_this_machine(self) -> dict[str, str]:
        """Return settings for a driver and executors on one machine.

        No other machine has to reach the driver. In local mode, partitions beyond the number of cores gain nothing.
        """
        if not self.local and not re.match(r"spark://(127\.|localhost:)", self.master):
            return {}
        here = dict.fromkeys(("spark.driver.host", "spark.driver.bindAddress"), "127.0.0.1")
        here["spark.python.daemon.module"] = "tidegate.spark.daemon"
        if not self.local:
            return here
        # In local mode executors share the driver's memory, which is 1 GiB by default.
        shared = {"spark.driver.memory": "2g"}
        return (
            here
            | shared
            | dict.fromkeys(("spark.sql.shuffle.partitions", "spark.default.parallelism"), str(self.cores))
        )


_ANSI = "spark.sql.ansi.enabled"
_HIDDEN = (
    "without it, sums that overflow and values that cannot be cast become wrong numbers and nulls without an error"
)
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    _ANSI: "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The list omits kafka: the older interface would convert each row once more.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    "spark.python.worker.reuse": "true",
    # Executors keep a consumer for each partition that they read, from one micro-batch to the next.
    "spark.kafka.consumer.cache.capacity": "512",
    # The records of a micro-batch with a transform are cached for a second or two; compressing them would take longer.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.redaction.regex": _SECRETS,
    "spark.sql.redaction.options.regex": f"(?i)url|{_SECRETS.removeprefix('(?i)')}",
}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_TAIL_LINES = 15
_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"


class Errors:
    """The standard error of the JVM: kept while a session starts, and passed on afterwards."""

    def __init__(self, source: IO[bytes]) -> None:
        self._kept: deque[str] = deque(maxlen=200)
        self._passing = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(source,), name="tidegate-spark-errors", daemon=True)
        self._reader.start()

    def keep(self) -> None:
        """Keep the output from now on, because a session is starting."""
        self._passing.clear()

    def pass_on(self) -> None:
        """Send the output to this process's standard error from now on, and forget what was kept."""
        self._passing.set()
        self._kept.clear()

    def tail(self) -> str:
        """Return the last lines that were kept."""
        self._reader.join(1.0)  # a dead JVM has closed the pipe; a live one is waited for no longer than this
        return masked("\n".join(list(self._kept)[-_TAIL_LINES:]))

    def _read(self, source: IO[bytes]) -> None:
        with source:
            for line in source:
                if self._passing.is_set():
                    # stderr may be closed or missing. This thread must not end then: a full pipe would block the JVM.
                    with suppress(OSError, ValueError, AttributeError):
                        sys.stderr.write(line.decode(errors="replace"))
                elif text := line.decode(errors="replace").strip():
                    self._kept.append(text)


def launched(conf: Mapping[str, str]) -> tuple[Any, Errors | None]:
    """Launch a JVM with these settings; return its gateway and errors. Under ``spark-submit``, use the JVM of that."""
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - an extra

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return launch_gateway(), None  # type: ignore[no-untyped-call]
    reading, writing = os.pipe()
    errors = Errors(os.fdopen(reading, "rb"))
    try:
        with _properties(conf):
            streams = {"stderr": writing, "stdout": subprocess.DEVNULL}
            return launch_gateway(popen_kwargs=streams), errors  # type: ignore[no-untyped-call]
    except Exception as error:
        os.close(writing)
        writing = -1
        raise ConfigurationError(f"Spark could not be started; its last words:\n{errors.tail()}") from error
    finally:
        if writing >= 0:
            os.close(writing)


@contextmanager
def _properties(conf: Mapping[str, str]) -> Iterator[None]:
    """Pass the settings in a file. PySpark would put them into the process's arguments, which every user can read."""
    before = os.environ.get(_SUBMIT_ARGS)
    spark = installed()
    text = "".join(f"{_escaped(key, key=True)}={_escaped(text)}\n" for key, text in conf.items())
    with _private_file(spark.defaults() + text) as file:
        arguments = f"--properties-file {shlex.quote(str(file))} {spark.arguments()} {before or 'pyspark-shell'}"
        os.environ[_SUBMIT_ARGS] = arguments
        try:
            yield
        finally:
            if before is None:
                del os.environ[_SUBMIT_ARGS]
            else:
                os.environ[_SUBMIT_ARGS] = before


@contextmanager
def _private_file(text: str) -> Iterator[Path]:
    """Yield a file that only this user can read. On Linux it is in memory, and disappears however this process ends."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryDirectory(prefix="tidegate-spark-") as folder:
            file = Path(folder, "spark.properties")
            file.write_text(text)
            yield file
        return
    with os.fdopen(os.memfd_create("spark.properties"), "w") as memory:
        memory.write(text)
        memory.flush()
        yield Path(f"/proc/{os.getpid()}/fd/{memory.fileno()}")


_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


def _escaped(text: str, *, key: bool = False) -> str:
    """Escape text for a Java properties file."""
    special = _ESCAPES | ({mark: f"\\{mark}" for mark in "=:#! "} if key else {})
    escaped = "".join(special.get(mark, mark) for mark in text)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


_V1_SOURCES = "spark.sql.sources.useV1SourceList"
_PROBE_SECONDS = 120.0  # includes the time to start executors
_NEEDED = {
    "org.apache.spark.sql.kafka010.KafkaSourceProvider": "spark-sql-kafka-0-10",
    "org.apache.spark.kafka010.KafkaConfigUpdater": "spark-token-provider-kafka-0-10",
    "org.apache.kafka.clients.consumer.KafkaConsumer": "kafka-clients",
    "org.apache.commons.pool2.impl.GenericKeyedObjectPool": "commons-pool2",
}
_CONNECTOR_JAR = re.compile(r"spark-sql-kafka-0-10_(?P<scala>[\d.]+)-(?P<spark>\d+\.\d+)[\w.-]*\.jar")


def refuse_remote(session: Any) -> None:
    """Raise if a session is one of Spark Connect: its driver, and the JVM of that, are another process."""
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise ConfigurationError(
            "this is a session of Spark Connect, and the driver of a pipeline, or of a query with ExactlyOnce, has to "
            "be this process; open the session with a master (SparkOptions(master=…)) instead of a remote"
        )


def check_session(session: SparkSession, *, reads_kafka: bool = True) -> None:
    """Raise a :class:`ConfigurationError` that says what is missing, if a pipeline cannot run on this session.

    ``reads_kafka``: it has to have the Kafka connector, and SQL that raises errors. A query of the user's needs the
    connector only for its own source, and computes its rows as the user wants.

    Also removes ``kafka`` from the session's list of sources that are read through the older interface, and limits the
    size of a batch for a Python worker unless the user has set a limit.
    """
    refuse_remote(session)
    version = check_versions(session)
    if reads_kafka:
        _check_connector(session, version)
        _check_ansi(session)
    sources = str(session.conf.get(_V1_SOURCES, "") or "")
    kept = [source for source in sources.split(",") if source.strip().lower() != "kafka"]
    if len(kept) < len(sources.split(",")):
        session.conf.set(_V1_SOURCES, ",".join(kept))
    limit, default, most = version.batch_limit
    if session.conf.get(limit, None) in (None, default):
        session.conf.set(limit, most)
    if not str(session.sparkContext.master).startswith("local["):
        _check_workers(session)


def _check_ansi(session: SparkSession) -> None:
    if str(session.conf.get(_ANSI, "false")).lower() != "true":
        raise ConfigurationError(
            f'{_ANSI} is off in this Spark session; switch it on, by session.conf.set("{_ANSI}", True): {_HIDDEN}'
        )


def _check_connector(session: SparkSession, version: SparkVersion) -> None:
    jvm: Any = session._jvm
    scala = str(jvm.scala.util.Properties.versionNumberString())
    fitting = f"spark-sql-kafka-0-10_{'.'.join(scala.split('.')[:2])}"
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    found = {}
    for name, jar in _NEEDED.items():
        try:
            found[jar] = loader.loadClass(name)
        except Exception as error:
            raise ConfigurationError(
                f"the Kafka connector is not complete on the class path of this Spark session: {jar} is missing. Let "
                "the pipeline open the session (spark=SparkOptions(…)), or open yours with "
                f"spark.jars.packages=org.apache.spark:{fitting}:{session.version}, in a new process"
            ) from error
    source = found["spark-sql-kafka-0-10"].getProtectionDomain().getCodeSource()
    jar = str(source.getLocation().getPath()) if source is not None else ""
    match = _CONNECTOR_JAR.search(jar)
    if match and (match["spark"] != version.number or not scala.startswith(match["scala"])):
        raise ConfigurationError(
            f"the Kafka connector {match[0]} does not fit Spark {session.version} with Scala {scala}; take "
            f"{fitting} in version {session.version}"
        )


def _check_workers(session: SparkSession) -> None:
    """Run one task on an executor. It reports its versions of Python and Tidegate, and fails without Tidegate."""
    context = session.sparkContext
    answer: list[Any] = []

    def ask() -> None:
        try:
            answer.append(context.parallelize([0], 1).mapPartitions(_introduce).collect()[0])
        except Exception as error:  # raised in the waiting thread
            answer.append(error)

    from pyspark import InheritableThread  # noqa: PLC0415 - an extra

    context.addJobTag("tidegate-check")
    asking = InheritableThread(target=ask, daemon=True)
    asking.start()
    asking.join(_PROBE_SECONDS)
    context.removeJobTag("tidegate-check")
    if asking.is_alive():
        threading.Thread(target=context.cancelJobsWithTag, args=("tidegate-check",), daemon=True).start()
        raise ConfigurationError(
            f"no executor of {context.master} ran a task within {_PROBE_SECONDS:g} s: is that the right address, and "
            "has some worker a free core and enough memory?"
        )
    if isinstance(answer[0], Exception):
        raise ConfigurationError(_workers_trouble(str(answer[0]), str(context.pythonExec))) from answer[0]
    if answer[0] != _ours():
        raise ConfigurationError(
            f"executors run Python and Tidegate {' and '.join(answer[0])}, the driver {' and '.join(_ours())}; install "
            "the same on both"
        )


def _introduce(_: Iterable[int]) -> Iterator[tuple[str, str]]:
    yield _ours()


def _ours() -> tuple[str, str]:
    from importlib.metadata import version  # noqa: PLC0415 - on executors

    return f"{sys.version_info.major}.{sys.version_info.minor}", version("tidegate")


def _workers_trouble(said: str, python: str) -> str:
    if "No module named 'tidegate'" in said or "PackageNotFoundError" in said:
        return f"Tidegate is not installed for {python} on the executors; install there what the driver has"
    if "PYTHON_VERSION_MISMATCH" in said:
        return (
            f"{python} on the executors is another version of Python than {sys.version.split()[0]} on the driver; let "
            "PYSPARK_PYTHON (or spark.pyspark.python) name the same version on the executors"
        )
    if "Cannot run program" in said:
        return (
            f"there is no {python} on the executors; let PYSPARK_PYTHON (or spark.pyspark.python) name a Python there"
        )
    reason = next((line for line in reversed(said.strip().splitlines()) if line.strip()), "it gave no reason")
    return f"a first task failed on the executors: {masked(reason.strip())}"


_KNOCK_SECONDS = 5.0


def open_session(options: SparkOptions | None = None) -> SparkSession:
    """Return a checked session with these options.

    An existing session of this process is reused if it was opened with the same options, or if these are the defaults.
    """
    context, builder = _pyspark()
    version = installed()
    options = options or SparkOptions()
    active = context._active_spark_context
    if active is not None and options not in (SparkOptions(), _machine.options):
        raise ConfigurationError(
            f"this process has a Spark session already ({active.appName!r} on {active.master}), and there can be one "
            "only: pass that session to the pipeline, or stop it first"
        )
    if active is not None:
        session: SparkSession = builder.getOrCreate()
        check_session(session)
        return session
    find_java("Spark")
    _check_master(options.master)
    settings = options.settings()
    version.quieten()
    with _python_of_the_workers(settings):
        session = _machine.start(settings)
    try:
        check_session(session)
    except BaseException:
        session.stop()
        raise
    _machine.options = options
    return session


class _Machine:
    """The JVM of this process's sessions. Spark keeps it when a session is stopped, and the next session uses it."""

    def __init__(self) -> None:
        self.options: SparkOptions | None = None
        self._errors: Errors | None = None
        self._given: set[str] = set()

    def start(self, settings: Mapping[str, str]) -> SparkSession:
        """Start a session, in a new JVM if there is none yet."""
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - an extra
        from pyspark.sql import SparkSession  # noqa: PLC0415

        if SparkContext._gateway is None:
            gateway, self._errors = launched(settings)
            SparkContext._ensure_initialized(gateway=gateway)
        elif self._errors is not None:
            self._errors.keep()
        jvm: Any = SparkContext._jvm
        for key in self._given - settings.keys():  # they would still apply to the new session
            jvm.java.lang.System.clearProperty(key)
        self._given = set(settings)
        try:
            SparkContext(conf=SparkConf(_jvm=jvm).setAll(list(settings.items())))
            session: SparkSession = SparkSession.builder.getOrCreate()
        except Exception as error:
            raise ConfigurationError(
                f"Spark could not be started on {settings['spark.master']}: {masked(_cause(error))}"
            ) from error
        finally:
            if self._errors is not None:
                self._errors.pass_on()
        return session


_machine = _Machine()


def _check_master(master: str) -> None:
    """Try to connect to a standalone master. Spark itself would try for a minute and then report a different error."""
    if not master.startswith("spark://"):
        return
    failures = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()
            return
        except (OSError, ValueError) as error:
            failures.append(f"{address}: {error}")
    raise ConfigurationError(f"no Spark master answers at {master} ({'; '.join(failures)}); is that its address?")


def _cause(error: Exception) -> str:
    """Return the first line of the Java exception or, without one, of the Python exception."""
    thrown = getattr(error, "java_exception", None)
    return str(error if thrown is None else thrown.toString()).strip().partition("\n")[0]


@contextmanager
def _python_of_the_workers(settings: Mapping[str, str]) -> Iterator[None]:
    """Make workers run the driver's Python interpreter, unless another is configured.

    The default is the ``python3`` on PATH, which may have none of the packages.
    """
    name = "PYSPARK_PYTHON"
    before = os.environ.get(name)
    os.environ[name] = settings.get("spark.pyspark.python") or before or sys.executable
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _pyspark() -> tuple[Any, Any]:
    try:
        from pyspark import SparkContext  # noqa: PLC0415 - an extra
        from pyspark.sql import SparkSession  # noqa: PLC0415

        if importlib.util.find_spec("pandas") is None:  # PySpark requires pandas to pass Arrow data to Python
            raise ModuleNotFoundError(name="pandas")
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"pipelines need {error.name}; run: pip install 'tidegate[spark]'") from None
    return SparkContext, SparkSession.builder
