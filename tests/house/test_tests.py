"""The tests mirror the package: where something is tested can be guessed from where it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from .sources import ROOT, Source, python_files, read

BESIDE = {
    "arguments": "the parameters of all public functions, in one table",
    "chaos": "long runs with faults: of a whole group, and in `spark` of a whole cluster",
    "confidential": "secrets are planted everywhere and looked for everywhere",
    "crash": "one process that dies, freezes or is cut off at each step, on each store",
    "house": "rules for the source itself",
    "replication": "a database that real Debezium replicates, through Kafka and a sink, into another",
    "simulation": "listeners and pipelines on a runtime that a seed decides",
}
"""Folders that mirror nothing: what they test goes through several packages."""

REPOSITORY = {"demo", "deploy", "docs", "examples"}
"""Folders that mirror folders of the repository."""

INSIDE_DOCS = {"model"}
"""Folders that mirror folders of `docs`."""


def folders_of(files: Iterable[PurePosixPath]) -> set[PurePosixPath]:
    """The folders that hold Python files, as paths below `tests`."""
    return {folder for path in files for folder in path.parents if folder.parts}


def strangers(folders: Iterable[PurePosixPath], package: Path) -> Iterator[str]:
    """Folders of tests that are named after nothing that is there."""
    for folder in sorted(folders):
        inner = PurePosixPath(*folder.parts[1:]) if folder.parts[0] in BESIDE else folder
        mirrors = (package / inner).is_dir() or (package / inner).with_suffix(".py").is_file()
        if not mirrors and folder.parts[0] not in REPOSITORY | INSIDE_DOCS:
            yield str(folder)


def unknown(sources: Iterable[Source], modules: set[str]) -> Iterator[str]:
    """Imports from `tests` of what is not there."""
    for source in sources:
        for each in source.imports():
            if each.name.startswith("tests.") and not {each.name, each.name.rpartition(".")[0]} & modules:
                yield f"{source.module}:{each.line} imports {each.name}"


def found() -> list[Path]:
    return python_files("tests")


def test_each_folder_of_tests_mirrors_one_of_the_package() -> None:
    folders = folders_of(PurePosixPath(path.relative_to(ROOT / "tests")) for path in found())
    assert list(strangers(folders, ROOT / "src" / "tidegate")) == []


def test_the_folders_beside_the_mirror_are_there() -> None:
    homes = {ROOT / "tests" / name for name in {*BESIDE, *REPOSITORY, *INSIDE_DOCS}}
    assert {home for home in homes if not home.is_dir()} == set()
    assert {name for name in REPOSITORY if not (ROOT / name).is_dir()} == set()
    assert {name for name in INSIDE_DOCS if not (ROOT / "docs" / name).is_dir()} == set()


def test_tests_import_only_modules_of_tests_that_are_there() -> None:
    modules = {read(path).module for path in found()}
    others = python_files("tools", "benchmarks", "demo", "examples")
    assert list(unknown(map(read, [*found(), *others]), modules)) == []


def test_a_folder_that_mirrors_nothing_is_reported() -> None:
    package = ROOT / "src" / "tidegate"
    right = ["app", "app/sink", "spark/loop", "settings", "chaos/spark", "ledger/redis", "docs", "model"]
    wrong = ["app/sinks", "chaos/storms", "listeners", "sink"]
    assert list(strangers(map(PurePosixPath, right + wrong), package)) == wrong


def test_an_import_of_what_has_moved_is_reported() -> None:
    source = Source("tests.app.test_app", "from tests.sinks.shop import Shop\nfrom tests.app.sink.shop import Shop")
    assert list(unknown([source], {"tests.app.sink.shop"})) == ["tests.app.test_app:1 imports tests.sinks.shop.Shop"]
