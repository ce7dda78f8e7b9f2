"""The master and the workers of a standalone Spark cluster."""

from __future__ import annotations

import importlib.util
import json
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from tidegate.sandbox.errors import SandboxError
from tidegate.sandbox.executor import Executor, executors_below
from tidegate.sandbox.ports import LOOPBACK, free_port
from tidegate.sandbox.process import Command
from tidegate.sandbox.programs import find_java
from tidegate.sandbox.server import PROBE_SECONDS, Server, Setting

__all__ = ["SparkMaster", "SparkWorker", "authentication"]

_FAST_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class _Node(Server):
    """The base class of master and workers: a Spark daemon with a web page that reports its state."""

    start_timeout = 90.0

    def __init__(self, *, settings: Mapping[str, Setting] | None = None, secret: str | None = None) -> None:
        super().__init__(settings=settings)
        self._page_port: int | None = None
        self._secret = {} if secret is None else authentication(secret)

    @property
    def page_port(self) -> int:
        """The port of its web page."""
        if self._page_port is None:
            self._page_port = free_port()
        return self._page_port

    @abstractmethod
    def _arguments(self) -> Sequence[str]:
        """Return the Java class to run and its arguments."""

    def _ports(self) -> Sequence[int]:
        return (self.port, self.page_port)

    def _forget_ports(self) -> None:
        super()._forget_ports()
        self._page_port = None

    def _check(self) -> None:
        find_java("Spark")
        _spark_home()

    def _initialise(self) -> None:
        for name in ("conf", "work", "local"):
            self._space.fresh_folder(name)
        # In a file, because every user can read a process's arguments.
        settings = "".join(f"{key} {text}\n" for key, text in self._secret.items())
        self._space.private_file("conf/spark-defaults.conf", settings)

    def _command(self) -> Command:
        home, space = _spark_home(), self._space.path
        options = " ".join(f"-D{name}={_literal(value)}" for name, value in self.settings.items())
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(space / "conf"),  # empty, so the machine's own Spark configuration is not used
            "SPARK_LOCAL_DIRS": str(space / "local"),
            "SPARK_LOCAL_IP": self.host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{_FAST_START} {options}".strip(),
        }
        # Executors, which workers start, run the Python of the driver.
        environment |= {name: os.environ[name] for name in ("PYTHONPATH", "PYSPARK_PYTHON") if name in os.environ}
        common = ("--host", self.host, "--port", str(self.port), "--webui-port", str(self.page_port))
        main, *rest = self._arguments()
        return Command(["/bin/bash", home / "bin" / "spark-class", main, *common, *rest], environment)

    def _state(self) -> dict[str, Any]:
        """Return the state that the daemon reports on its web page."""
        connection = HTTPConnection(self.host, self.page_port, timeout=PROBE_SECONDS)
        try:
            connection.request("GET", "/json/")
            state: dict[str, Any] = json.loads(connection.getresponse().read())
        except (HTTPException, ValueError) as error:
            raise ConnectionError(f"{self.title} does not report its state") from error
        finally:
            connection.close()
        return state


class SparkMaster(_Node):
    """The master. Applications connect to its ``url``."""

    title = "Spark's master"

    @property
    def url(self) -> str:
        """The master URL for drivers."""
        return f"spark://{self.host}:{self.port}"

    def workers_alive(self) -> int:
        """Return the number of workers that it can give work to."""
        return sum(worker["state"] == "ALIVE" for worker in self._state()["workers"])

    def _arguments(self) -> Sequence[str]:
        return ("org.apache.spark.deploy.master.Master",)

    def _ready(self) -> bool:
        return bool(self._state()["status"] == "ALIVE")


class SparkWorker(_Node):
    """A worker, which starts an executor for each application."""

    title = "Spark's worker"

    def __init__(
        self,
        master: SparkMaster,
        *,
        cores: int,
        memory: str,
        host: str = LOOPBACK,
        settings: Mapping[str, Setting] | None = None,
        secret: str | None = None,
    ) -> None:
        super().__init__(settings=settings, secret=secret)
        self.host = host
        self._master, self._cores, self._memory = master, cores, memory

    @property
    def executors(self) -> tuple[Executor, ...]:
        """The running executors, which can be killed or paused one by one."""
        return () if self.pid is None else executors_below(self.pid)

    def _arguments(self) -> Sequence[str]:
        size = ("--cores", str(self._cores), "--memory", self._memory, "--work-dir", str(self._space.path / "work"))
        return ("org.apache.spark.deploy.worker.Worker", *size, self._master.url)

    def _ready(self) -> bool:
        name = self._state()["id"]
        return any(it["id"] == name and it["state"] == "ALIVE" for it in self._master._state()["workers"])


def authentication(secret: str) -> dict[str, str]:
    """Return the settings that all processes of a cluster share; only those that know the secret can join it."""
    return {"spark.authenticate": "true", "spark.authenticate.secret": secret}


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for location in (spec and spec.submodule_search_locations) or ():
        if (home := Path(location)).joinpath("bin", "spark-class").is_file():
            return home
    raise SandboxError('Spark comes with PySpark, which is not installed. Run: pip install "tidegate[spark]".')


def _literal(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
