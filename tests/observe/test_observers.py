"""Several observers hear the same, and one that fails does not disturb the others."""

from __future__ import annotations

import logging

import pytest

from tidegate.observe import Event, Observers, Paused


def test_one_that_raises_is_logged_and_the_others_hear_on(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("broken")

    observers = Observers([broken])
    observers.add(heard.append)
    with caplog.at_level(logging.ERROR, "tidegate"):
        observers(Paused("g", True))
    assert heard == [Paused("g", True)]
    assert "an observer failed at Paused" in caplog.text


def test_they_can_be_listed() -> None:
    heard: list[Event] = []
    observers = Observers()
    observers.add(heard.append)
    assert list(observers) == [heard.append]
