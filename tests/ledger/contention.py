"""A fight over partitions: what each contender does, in a process or a thread of its own."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tidegate.core.records import TopicPartition
from tidegate.core.work import Claim, Span
from tidegate.errors import Fenced

from .samples import GROUP, writing
from .stores import Store

PARTITIONS = [TopicPartition("orders", number) for number in range(4)]


_barrier: Any = None
_seasoned: Any = None  # how many contenders have won and lost: one that is left alone is never fenced


class Score(NamedTuple):
    """What one contender got done."""

    commits: int
    fences: int


_PATIENCE = 60.0  # seconds more, on a slow machine, until every contender has won and lost once


def prepare(barrier: Any, seasoned: Any) -> None:
    """Give a process what its contender will wait at."""
    global _barrier, _seasoned  # they can only be inherited, not sent
    _barrier, _seasoned = barrier, seasoned


def fight(recipe: Callable[[], Store], seconds: float, seed: int) -> Score:
    """Claim, commit some spans, be fenced, back off, claim again; for a while. Any other error is the test's."""
    store = recipe()
    ledger = store.open()
    chance = random.Random(seed)
    commits = fences = 0
    claims: dict[TopicPartition, Claim] = {}
    _barrier.wait(60)
    deadline, is_seasoned = time.monotonic() + seconds, False
    while (now := time.monotonic()) < deadline or (now < deadline + _PATIENCE and _seasoned.value < _barrier.parties):
        if commits and fences and not is_seasoned:
            is_seasoned = True
            with _seasoned.get_lock():
                _seasoned.value += 1
        if not claims:
            claims = ledger.claim(GROUP, chance.sample(PARTITIONS, chance.randint(1, len(PARTITIONS))))
        try:
            for _ in range(chance.randint(1, 5)):
                spans = [Span(tp, c.position, c.position + chance.randint(1, 3)) for tp, c in claims.items()]
                ledger.transact(claims, spans, writing(store, *spans))
                commits += 1
                claims = {span.partition: claims[span.partition]._replace(position=span.end) for span in spans}
        except Fenced:
            fences += 1
            time.sleep(chance.uniform(0, 0.02))
            claims = ledger.reclaim(claims, take=chance.random() < 0.7).claims
        else:
            time.sleep(chance.uniform(0, 0.01))  # or the one that SQLite's lock favours has it to itself
            if chance.random() < 0.3:
                ledger.release(claims)
                claims = {}
    if not store.in_process:
        store.close()
    return Score(commits, fences)
