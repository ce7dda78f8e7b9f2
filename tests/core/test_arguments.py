"""Arguments are converted by their annotations, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import pytest

from tidegate.core.arguments import (
    ByteCount,
    ClientConfig,
    Count,
    Label,
    Seconds,
    argument,
    convert_arguments,
    did_you_mean,
    refuse_unknown,
    setting,
    several,
)
from tidegate.errors import ConfigurationError


class Colour(StrEnum):
    RED = "red"
    DARK_BLUE = "dark-blue"


@dataclass(frozen=True, slots=True)
class Paint:
    colour: Colour
    coats: Count = 1
    dries: Seconds | None = None

    def __post_init__(self) -> None:
        convert_arguments(self)


def refusal(call: Callable[..., object], *given: object) -> str:
    with pytest.raises(ConfigurationError) as refused:
        call(*given)
    return str(refused.value)


def test_the_fields_of_a_dataclass_are_converted_as_they_are_annotated() -> None:
    assert Paint("red", "2", "5 min") == Paint(Colour.RED, 2, 300.0)  # type: ignore[arg-type]
    assert Paint(Colour.RED).dries is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("green",), "colour: expected one of 'red', 'dark-blue', not 'green'"),
        (("DARK_BLUE",), "colour: expected one of 'red', 'dark-blue', not 'DARK_BLUE'; did you mean 'dark-blue'?"),
        (("red", True), "coats: expected a whole number of at least 1, not True"),
        (
            ("red", 1, "soon"),
            "dries: expected a number of seconds, or a time such as '500ms', '5s' or '10 min', not 'soon'",
        ),
    ],
)
def test_a_refusal_names_the_parameter_what_it_takes_and_what_was_given(given: tuple[Any, ...], said: str) -> None:
    assert refusal(Paint, *given) == said


@pytest.mark.parametrize("given", ["postgresql://user:s3cret@db", "password=s3cret", "s3cret" * 10])
def test_a_text_that_is_no_word_is_not_shown(given: str) -> None:
    assert "s3cret" not in refusal(argument, "colour", Colour, given)


@pytest.mark.parametrize(
    ("given", "kind"), [("s3cret", "one of 'red', 'dark-blue'"), (5, "one of 'red', 'dark-blue', not a whole number")]
)
def test_no_value_of_a_setting_is_shown(given: object, kind: str) -> None:
    assert refusal(setting, "paint.toml: colour", Colour, given) == f"paint.toml: colour: expected {kind}"


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("5", 5),
        ("5B", 5),
        ("2 kB", 2000),
        ("2KiB", 2048),
        ("1.5MB", 1_500_000),
        ("32MiB", 32 << 20),
        ("1gb", 10**9),
        (7, 7),
    ],
)
def test_a_size_is_a_number_of_bytes_or_has_a_unit(written: object, size: int) -> None:
    assert argument("size", ByteCount, written) == size


def test_an_entry_of_a_mapping_is_named_by_its_key() -> None:
    assert (
        refusal(argument, "columns", Mapping[str, Label], {"id": 5})
        == "columns.id: expected a string that is not empty, not a whole number"
    )


def test_one_is_as_good_as_a_list_of_one() -> None:
    names = Annotated[tuple[str, ...], several(str, "a name")]
    assert argument("key", names, "id") == argument("key", names, ["id"]) == ("id",)
    assert refusal(argument, "key", names, ["id", 5]) == "key: expected a name, or a list of them, not a list"


def test_settings_of_librdkafka_are_plain_values_and_callbacks() -> None:
    given = {"fetch.min.bytes": 1, "debug": "all", "socket.keepalive.enable": True, "error_cb": print}
    assert argument("kafka", ClientConfig, given) == given
    assert refusal(argument, "kafka", ClientConfig, {"sasl.password": None}) == (
        "kafka: 'sasl.password': expected a string, a number, or true or false, not None"
    )


def test_an_unknown_name_is_told_the_nearest_or_all_that_there_are() -> None:
    assert (
        refusal(refuse_unknown, "a paint", ["color"], ["colour", "coats"])
        == "a paint has no argument 'color'; did you mean 'colour'?"
    )
    assert (
        refusal(refuse_unknown, "a paint", ["x"], ["colour", "coats"])
        == "a paint has no argument 'x'; it has coats, colour"
    )
    assert did_you_mean("x", ["colour"]) == ""
