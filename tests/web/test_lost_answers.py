"""Changes on the page whose connection to the ledger breaks."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ledger.cutting import Cut, Moment, Wire

from tidegate import Ledger, TopicPartition, open_ledger
from tidegate.sandbox import Redis

from .served import Answer, Served

PAUSE = b"pause by dashboard"


class Place:
    """A dashboard with a proxy between it and its ledger, in which there is a group."""

    def __init__(self, redis: Redis, folder: Path) -> None:
        self.wire = Wire(redis.host, redis.port)
        prefix = f"{{t{secrets.token_hex(4)}}}:"
        self.ledger: Ledger[Any] = open_ledger(redis.url, prefix=prefix)
        self.ledger.claim("billing", [TopicPartition("orders", 0)])
        url = self.wire.url(redis.url)
        self.served = Served.start(
            folder,
            "--allow-changes",
            TIDEGATE_LEDGER__URL=url,
            TIDEGATE_LEDGER__PREFIX=prefix,
            TIDEGATE_LEDGER__LIMITS__ATTEMPTS="3",
        )

    def pause(self, cut: Cut) -> Answer:
        """Pause the group: preview it, and then do it."""
        cookie = self.served.log_in()
        csrf = self.served.csrf(cookie)
        asked = self.served.ask("/change", cookie=cookie, form={"csrf": csrf, "what": "pause", "group": "billing"})
        kept = re.search(r'name="preview" value="([^"]+)"', asked.text)
        assert kept, asked.text
        self.wire.cut = cut
        answer = self.served.ask("/execute", cookie=cookie, form={"csrf": csrf, "preview": kept[1]})
        self.wire.mend()
        if answer.status == 303:
            return self.served.ask(answer.headers["location"], cookie=cookie)
        return answer

    def close(self) -> None:
        self.served.close()
        self.ledger.close()
        self.wire.close()


@pytest.fixture
def place(redis_server: Redis, tmp_path: Path) -> Iterator[Place]:
    made = Place(redis_server, tmp_path)
    yield made
    made.close()


def test_the_page_tells_what_was_changed_though_the_answer_was_lost(place: Place) -> None:
    answer = place.pause(Cut(1, Moment.AFTER, lambda: place.ledger.resume("billing"), match=PAUSE))
    assert (answer.status, "The group is paused." in answer.text) == (200, True), answer.text
    assert not place.ledger.read("billing").paused, "it was resumed since, and not paused again"


def test_the_page_does_not_say_that_nothing_was_changed_if_nobody_can_know(place: Place) -> None:
    answer = place.pause(Cut(1, Moment.AFTER, for_good=True, match=PAUSE))
    assert answer.status == 503
    assert "it is not known whether this was done" in answer.text
    assert place.ledger.read("billing").paused
