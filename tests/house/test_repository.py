"""What holds for the files of the repository as a whole."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from .sources import ROOT, Source, python_files, read

LONGEST_FILE = 800
UNSAFE_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec"}
ADDRESS = re.compile(
    r"https?://|file:|^\s*(?:-i|-f|--(?:extra-)?index-url|--find-links|--trusted-host)\b", re.MULTILINE
)
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def unsafe(source: Source) -> Iterator[str]:
    """Where `source` loads or runs what it should only read."""
    for imported in source.imports():
        if imported.name.partition(".")[0] in UNSAFE_MODULES:
            yield f"{source.module}:{imported.line} imports {imported.name}"
    for node in ast.walk(source.tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in UNSAFE_CALLS:
                yield f"{source.module}:{node.lineno} calls {name}()"


def lacks_postponed_annotations(source: Source) -> bool:
    """Whether `source` defines something and evaluates its annotations on import."""
    defines = any(isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AnnAssign) for node in ast.walk(source.tree))
    return defines and not any(imported.name == "__future__.annotations" for imported in source.imports())


def locked_versions() -> dict[str, Version]:
    """The version that the lock files give each package, without those that `make matrix` overrides."""
    pins = (
        re.match(r"([\w.-]+)==([^\s;]+)", line)
        for lock in LOCKS
        if not lock.match("spark-*")
        for line in lock.read_text().splitlines()
    )
    return {canonicalize_name(pin[1]): Version(pin[2]) for pin in pins if pin}


def required_for_development() -> Iterator[Requirement]:
    """What pyproject.toml asks for with the extra `dev`, its references to other extras followed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pending = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    while pending:
        requirement = Requirement(pending.pop())
        if requirement.name == project["name"]:
            pending += [asked for extra in requirement.extras for asked in project["optional-dependencies"][extra]]
        else:
            yield requirement


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_file_names_no_index_and_no_address(lock: Path) -> None:
    assert not ADDRESS.findall(lock.read_text())


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_file_pins_every_package_by_hash(lock: Path) -> None:
    entries = re.split(r"^(?=[\w.-]+==)", re.sub(r"^\s*#.*\n", "", lock.read_text(), flags=re.MULTILINE), flags=re.M)[
        1:
    ]
    assert entries
    assert not [entry for entry in entries if "--hash=sha256:" not in entry]


@pytest.mark.parametrize(
    "text",
    [
        "--index-url https://mirror.example/simple",
        "-i simple",
        "  --find-links wheels",
        "a @ https://files.example/a.whl",
    ],
)
def test_an_address_in_a_lock_file_would_be_found(text: str) -> None:
    assert ADDRESS.search(f"a==1\n{text}\n")


def test_the_lock_satisfies_what_the_project_asks_for() -> None:
    locked = locked_versions()
    stale = [
        f"{requirement} is locked at {locked.get(canonicalize_name(requirement.name))}; run `make lock`"
        for requirement in required_for_development()
        if locked.get(canonicalize_name(requirement.name), Version("0")) not in requirement.specifier
    ]
    assert not stale, "\n".join(stale)


def test_no_source_file_is_too_long_to_read() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in python_files("src")}
    assert not {str(path): length for path, length in lengths.items() if length > LONGEST_FILE}


def test_every_source_file_postpones_the_evaluation_of_annotations() -> None:
    assert not [str(path) for path in python_files("src") if lacks_postponed_annotations(read(path))]


def test_a_file_that_evaluates_its_annotations_is_found() -> None:
    assert lacks_postponed_annotations(Source("tidegate.core.span", "class Span:\n    start: int"))
    assert not lacks_postponed_annotations(Source("tidegate.core", "from tidegate.core.span import Span", True))


def test_the_sources_neither_unpickle_nor_evaluate() -> None:
    found = [finding for path in python_files("src") for finding in unsafe(read(path))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text", ["import pickle", "from pickle import loads", "eval(text)", "def run(x):\n    exec(x)"]
)
def test_unpickling_and_evaluating_are_found(text: str) -> None:
    assert list(unsafe(Source("tidegate.app.runtime", text)))


def test_a_redis_script_call_is_not_taken_for_evaluation() -> None:
    assert not list(unsafe(Source("tidegate.ledger.redis", "client.eval(script)")))


def test_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    command = script.read_text().splitlines()[-1]
    assert command in (ROOT / "README.md").read_text()
