"""Durations, as people write them."""

from __future__ import annotations

import pytest

from tidegate.core.text import seconds_of
from tidegate.errors import ConfigurationError


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("500ms", 0.5),
        ("1s", 1.0),
        (" 1.5 seconds ", 1.5),
        ("2m", 120.0),
        ("1 Hour", 3600.0),
        ("3", 3.0),
        (0.25, 0.25),
        (2, 2.0),
    ],
)
def test_a_duration_is_a_number_of_seconds(written: str | float, seconds: float) -> None:
    assert seconds_of(written) == pytest.approx(seconds)


@pytest.mark.parametrize("written", ["", "s", "1 week", "-1s", "1s 2m", -1, float("nan"), float("inf"), True])
def test_what_is_no_duration_is_refused(written: str | float) -> None:
    with pytest.raises(ConfigurationError, match="is not a duration; write '500ms'"):
        seconds_of(written)
