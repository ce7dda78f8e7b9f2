"""Names, owners and notes come from others: what would hide or reorder the text around them is shown escaped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from sqlalchemy import create_engine, text

from tidegate.core.records import TopicPartition
from tidegate.core.work import Span
from tidegate.ledger import open_ledger

from .conftest import CHOSEN
from .served import Served

HOSTILE = "a\N{RIGHT-TO-LEFT OVERRIDE}\x1b[31m<b>\"'"
# A form sends names back, and the script finds a row again by its name: these have to be exact.
EXACT = re.compile(r'(?:value|data-key)="[^"]*"')


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A dashboard over a ledger whose group, topic, owner and notes are hostile."""
    folder = tmp_path_factory.mktemp("names")
    url, tp = f"sqlite:///{folder / 'hostile.db'}", TopicPartition("renamed", 0)
    with open_ledger(url) as ledger:
        ledger.create()
        claims = ledger.claim(HOSTILE, [tp, TopicPartition("orders", 0)])
        ledger.transact(claims, [Span(each, 0, 10, 10) for each in claims])
        ledger.pause(HOSTILE, note=HOSTILE)
    engine = create_engine(url)
    with engine.begin() as conn:
        for table in ("positions", "journal"):  # Kafka and the ledger allow no such name of a topic
            conn.execute(text(f"UPDATE tidegate_{table} SET owner = :hostile"), {"hostile": HOSTILE})
            named = text(f"UPDATE tidegate_{table} SET topic = :hostile WHERE topic = 'renamed'")
            conn.execute(named, {"hostile": HOSTILE})
    engine.dispose()
    started = Served.start(
        folder, "--no-kafka", "--allow-changes", TIDEGATE_LEDGER=url, TIDEGATE_DASHBOARD_TOKEN=CHOSEN
    )
    started.token = CHOSEN
    yield started
    started.close()


def assert_harmless(page: str) -> None:
    assert "\\u{202e}\\u{1b}[31m&lt;b&gt;" in page
    assert "<b>\"'" not in page
    shown = EXACT.sub("", page)
    assert not re.search("[\x00-\x08\x0b-\x1f\N{RIGHT-TO-LEFT OVERRIDE}]", shown)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/group?name={}",
        "/letters?group={}",
        "/journal?group={}&since=all",
        "/change?group={}&what=rewind",
        "/change?group={}&what=resume",
    ],
)
def test_a_hostile_name_is_escaped_wherever_it_is_shown(hostile: Served, path: str) -> None:
    answer = hostile.ask(path.format(quote(HOSTILE)), cookie=hostile.log_in())
    assert answer.status == 200
    assert_harmless(answer.text)


def test_a_hostile_name_is_escaped_in_a_preview_and_in_an_error(hostile: Served) -> None:
    cookie = hostile.log_in()
    form = {"csrf": hostile.csrf(cookie), "group": HOSTILE, "what": "rewind", "topic": "orders", "place": "5"}
    refused = hostile.ask("/change", cookie=cookie, form=form | {"place": HOSTILE})
    assert refused.status == 422
    assert_harmless(refused.text)
    preview = hostile.ask("/change", cookie=cookie, form=form | {"force": "1", "name": HOSTILE, "reason": HOSTILE})
    assert preview.status == 200
    assert_harmless(preview.text)
