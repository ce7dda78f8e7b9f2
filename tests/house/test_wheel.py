"""The wheel works in an empty environment: no extras, nothing but what it declares."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from .sources import ROOT

OPTIONAL = [
    "psycopg",
    "pymysql",
    "redis",
    "duckdb",
    "pyspark",
    "pyarrow",
    "google",
    "grpc_tools",
    "jsonschema_rs",
    "numpy",
    "prometheus_client",
    "opentelemetry",
    "starlette",
    "uvicorn",
]

PROGRAM = """
import importlib.util, sys
present = [name for name in sys.argv[2:] if importlib.util.find_spec(name)]
assert not present, f"not an empty environment: {present}"

import tidegate
assert tidegate.__file__.startswith(sys.prefix), tidegate.__file__
tidegate.open_ledger(f"sqlite:///{sys.argv[1]}").create()
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def requirements(distribution: metadata.Distribution) -> Iterator[str]:
    """What `distribution` needs here without extras."""
    for line in distribution.requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


def copy_installed(name: str, site_packages: Path) -> None:
    """Put a package of the running environment, and what it needs, into another one.

    The running environment is made from the lock file, so these are the locked versions, and no index is asked.
    """
    distribution = metadata.distribution(name)
    for file in distribution.files or []:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = site_packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(str(file.locate())), target)
    for needed in requirements(distribution):
        copy_installed(needed, site_packages)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (built,) = folder.glob("tidegate-*.whl")
    return built


@pytest.fixture(scope="module")
def empty_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that holds the wheel and what it declares."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=folder)
    site_packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    (installed,) = metadata.distributions(name="tidegate", path=[str(site_packages)])
    for name in requirements(installed):
        copy_installed(name, site_packages)
    run(*pip, "check", cwd=folder)
    return python


def test_the_wheel_needs_few_packages(empty_environment: Path) -> None:
    site_packages = next(empty_environment.parents[1].glob("lib/python*/site-packages"))
    (installed,) = metadata.distributions(name="tidegate", path=[str(site_packages)])
    assert set(requirements(installed)) == {"confluent-kafka", "msgspec", "sqlalchemy", "typer"}


def test_the_wheel_opens_a_sqlite_ledger_in_an_empty_environment(empty_environment: Path, tmp_path: Path) -> None:
    run(empty_environment, "-I", "-c", PROGRAM, tmp_path / "shop.db", *OPTIONAL, cwd=tmp_path)
    assert (tmp_path / "shop.db").stat().st_size
