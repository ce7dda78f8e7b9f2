from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.app.listener.books import Books
from tests.app.listener.topic import Topic
from tests.app.listener.witness import Notebook, witness
from tests.patience import wait_until
from tests.processes import ended, running

from tidegate.core.policies import GroupProtocol
from tidegate.sandbox import Kafka, Postgres

PARTITIONS = 4
ALL = frozenset(range(PARTITIONS))
SESSION_TIMEOUT = 2.0  # a busy machine may take its time; of the consumer protocol, the broker says it


def check(notebook: Notebook) -> None:
    """Callbacks and observer were told the same, and only ever of partitions that came, or that had been there."""
    notes = notebook.notes()
    seen, called = notes[::2], notes[1::2]
    assert [(note.kind, note.partitions) for note in seen] == [(note.kind, note.partitions) for note in called]
    assert all(note.seconds is None for note in called)
    assert all(note.seconds is not None and 0 <= note.seconds < 30 for note in seen)
    held: frozenset[int] = frozenset()
    for note in seen:
        if note.kind == "assigned":
            assert not held & note.partitions
            held |= note.partitions
        else:
            assert held >= note.partitions
            held -= note.partitions
    assert not held


@pytest.mark.parametrize("protocol", list(GroupProtocol))
def test_what_came_went_and_was_lost_is_told_although_every_callback_fails(
    kafka: Kafka, postgres: Postgres, tmp_path: Path, protocol: GroupProtocol
) -> None:
    topic = Topic.create(kafka.bootstrap, PARTITIONS)
    books = Books.open(postgres.url, PARTITIONS)
    sleepy, awake = Notebook(tmp_path / "sleepy"), Notebook(tmp_path / "awake")
    with running(witness, topic, books, protocol, SESSION_TIMEOUT, tmp_path / "sleepy") as first:
        wait_until(lambda: books.owners() == {first.pid}, "the first one has all partitions")
        os.kill(first.pid or 0, signal.SIGSTOP)
        with running(witness, topic, books, protocol, SESSION_TIMEOUT, tmp_path / "awake") as second:
            wait_until(lambda: books.owners() == {second.pid}, "the second one has taken over")
            assert sleepy.notes("lost") == []
            os.kill(first.pid or 0, signal.SIGCONT)
            wait_until(lambda: bool(sleepy.notes("lost")), "the first one knows")
            wait_until(lambda: books.owners() == {first.pid, second.pid}, "they share")
            sums = topic.fill(20)
            wait_until(lambda: sum(books.positions().values()) == 20 * PARTITIONS, "all is read")
            for child in (first, second):
                os.kill(child.pid or 0, signal.SIGTERM)
                assert ended(child) == 0
    books.check(topic, sums)
    assert books.owners() == {0}
    for notebook in (sleepy, awake):
        check(notebook)
    assert sleepy.notes("assigned")[0].partitions == ALL
    assert {note.partitions for note in sleepy.notes("lost")} == {ALL}
    assert len(sleepy.notes("lost")) == 2, "by the observer, and by the callback"
    assert awake.notes("lost") == []
    assert sleepy.notes()[-1].kind == awake.notes()[-1].kind == "revoked"
