"""Every parameter of what is public: converted, or refused by name where it is given."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest

from tidegate import ConfigurationError
from tidegate.errors import TidegateError

from .table import PLACES, Place

MODULES = (
    "",
    ".app",
    ".kafka",
    ".ledger",
    ".ledger.duckdb",
    ".ledger.redis",
    ".observe",
    ".operate",
    ".settings",
    ".spark",
    ".tables",
    ".testing",
)

MADE_BY_TIDEGATE = {
    # values that the ledger and the cluster give, and that are handed back to them
    *(
        "Break",
        "Bucket",
        "Claim",
        "Entry",
        "GroupState",
        "Identity",
        "FailedRecord",
        "StoredLetter",
        "Position",
        "Reclaimed",
        "Record",
    ),
    *("Result", "Span", "TopicPartition", "Verification"),
    # what became of something
    *(
        "AdoptPreview",
        "HandBackPreview",
        "Delivered",
        "Undelivered",
        "Handle",
        "Weakness",
        "BatchReport",
        "Report",
        "Run",
        "Replay",
        "Replayed",
        "Listener",
    ),
    *("EditPreview", "PausePreview", "Shift", "GroupStatus", "GroupSummary", "PartitionStatus", "Summaries"),
    # transactions
    *(
        "Transaction",
        "DuckdbTransaction",
        "KafkaTransaction",
        "MemoryTransaction",
        "RedisCommands",
        "RedisTransaction",
        "SqlTransaction",
    ),
    # events, and who hears of them
    *("Claimed", "Committed", "Conflicted", "DeadLettered", "FencedOff", "LagSeen", "Paused", "Polled", "Rebalanced"),
    *("ObservedHealth", "Observers", "ReadPosition", "Retried", "Skipped", "StoreBack", "StoreLost"),
    # records on their way into tables
    *("Feed", "Layout", "Misfit", "Rows"),
}
WITHOUT_CHOICE = {
    *("Ledger", "Format", "Health", "Interceptor", "Observer", "SendListener"),  # to be derived from
    *("DeadLetter", "Earliest", "Fail", "JsonFormat", "Latest", "Skip"),  # nothing can be passed
    *("ProducerMetrics",),  # a registry of prometheus_client
    *("plain", "settings_file"),  # functions of a value
}


def public() -> Iterator[str]:
    for module in MODULES:
        found = importlib.import_module(f"tidegate{module}")
        for name in found.__all__:
            thing = getattr(found, name)
            is_word = inspect.isclass(thing) and issubclass(thing, (BaseException, Enum))
            if callable(thing) and not is_word:
                yield name


def parameters(place: Place) -> set[str]:
    found: dict[str, inspect.Parameter] = {}
    for call in place.also or (place.call,):
        found |= dict(inspect.signature(call).parameters)
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name for name, each in found.items() if each.kind not in variable} - {"self"}


def test_everything_that_is_public_has_its_place_in_the_table() -> None:
    named = {name.partition(".")[0] for name in PLACES}
    assert sorted(set(public()) - named - MADE_BY_TIDEGATE - WITHOUT_CHOICE) == []


@pytest.mark.parametrize("name", PLACES)
def test_every_parameter_has_a_row(name: str) -> None:
    assert parameters(PLACES[name]) == set(PLACES[name].rows)
    assert [each for each, row in PLACES[name].rows.items() if not row.refused and not row.anything] == []


def refusals() -> Iterator[Any]:
    for name, place in PLACES.items():
        for parameter, row in place.rows.items():
            for number, given in enumerate(row.refused):
                yield pytest.param(place, parameter, given, id=f"{name}-{parameter}-{number}")


def conversions() -> Iterator[Any]:
    for name, place in PLACES.items():
        for parameter, row in place.rows.items():
            for number, (given, wanted) in enumerate(row.converted):
                yield pytest.param(place, parameter, given, wanted, id=f"{name}-{parameter}-{number}")


@pytest.mark.parametrize(("place", "parameter", "given"), [*refusals()])
def test_what_cannot_be_is_refused_by_name(place: Place, parameter: str, given: object) -> None:
    with pytest.raises(TidegateError) as refused:
        place.call(**{**place.needs, parameter: given})
    assert isinstance(refused.value, ConfigurationError)
    name = place.called.get(parameter, parameter).rstrip("s")
    assert name.replace("_", " ") in str(refused.value).replace("_", " ")


@pytest.mark.parametrize(("place", "parameter", "given", "wanted"), [*conversions()])
def test_text_becomes_what_is_meant(place: Place, parameter: str, given: object, wanted: object) -> None:
    made = place.held(place.call(**{**place.needs, parameter: given}), parameter)
    assert made == wanted
    assert type(made) is type(wanted)
