"""The pool of threads that compute on records."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict

import pytest

from tidegate.app.pool import Computation, Later, Pool
from tidegate.core.policies import Ordering
from tidegate.core.records import Record

LONG = 30.0


def records(count: int, partition: int = 0, keys: int = 5) -> list[Record]:
    return [Record("t", partition, offset, b"%d" % (offset % keys)) for offset in range(count)]


def wait_for(pool: Pool[int], *computations: Computation[int]) -> None:
    deadline = time.monotonic() + LONG
    while not all(each.is_done for each in computations):
        pool.check()
        assert time.monotonic() < deadline
        pool.wait(0.1)


@pytest.mark.parametrize("ordering", list(Ordering))
def test_records_of_a_lane_are_computed_in_their_order_and_never_two_at_once(ordering: Ordering) -> None:
    seen: dict[object, list[int]] = defaultdict(list)
    inside: set[object] = set()

    def compute(record: Record, attempt: int) -> int:
        lane = record.source if ordering is Ordering.PARTITION else (record.source, record.key)
        assert lane not in inside
        inside.add(lane)
        time.sleep(random.random() / 1000)
        inside.remove(lane)
        seen[lane].append(record.offset)
        return record.offset

    pool = Pool(8, ordering, compute, "test")
    made = [pool.submit(records(100, partition)) for partition in range(4)]
    more = [pool.submit([r._replace(offset=r.offset + 100) for r in records(100, partition)]) for partition in range(4)]
    wait_for(pool, *made, *more)
    pool.close()
    assert all(offsets == sorted(offsets) for offsets in seen.values())
    assert sum(map(len, seen.values())) == 800
    assert [each.results for each in made] == [list(range(100))] * 4


def test_a_slow_lane_holds_up_no_other() -> None:
    go = threading.Event()

    def compute(record: Record, attempt: int) -> int:
        if record.key == b"0":
            assert go.wait(LONG)
        return record.offset

    pool = Pool(2, Ordering.KEY, compute, "test")
    slow = pool.submit(records(50))
    quick = pool.submit([Record("t", 1, offset, b"quick") for offset in range(50)])
    wait_for(pool, quick)
    assert not slow.is_done
    go.set()
    wait_for(pool, slow)
    pool.close()


def test_records_without_a_key_wait_for_nobody() -> None:
    together = threading.Barrier(4, timeout=LONG)

    def compute(record: Record, attempt: int) -> int:
        together.wait()
        return record.offset

    pool = Pool(4, Ordering.KEY, compute, "test")
    made = pool.submit([Record("t", 0, offset) for offset in range(8)])
    wait_for(pool, made)
    pool.close()


def test_what_is_to_be_tried_again_later_takes_no_thread_and_keeps_its_place() -> None:
    attempts: list[tuple[bytes | None, int, int]] = []

    def compute(record: Record, attempt: int) -> int:
        attempts.append((record.key, record.offset, attempt))
        if record.offset == 0 and attempt < 3:
            raise Later(0.05)
        return record.offset

    pool = Pool(1, Ordering.KEY, compute, "test")
    made = pool.submit(records(4, keys=2))
    wait_for(pool, made)
    pool.close()
    assert [each for each in attempts if each[0] == b"0"] == [(b"0", 0, 1), (b"0", 0, 2), (b"0", 0, 3), (b"0", 2, 1)]
    assert attempts[1][0] == b"1", "the only thread went on with the other key while the first one waited"
    assert made.results == [0, 1, 2, 3]


def test_a_cancelled_computation_holds_up_nothing_that_comes_after_it() -> None:
    tried = threading.Event()

    def compute(record: Record, attempt: int) -> int:
        if record.offset == 0:
            tried.set()
            raise Later(3600)
        return record.offset

    pool = Pool(2, Ordering.PARTITION, compute, "test")
    stuck = pool.submit(records(10))
    assert tried.wait(LONG)
    after = pool.submit([Record("t", 0, 20)])
    assert not after.is_done
    pool.cancel([stuck])
    wait_for(pool, after)
    pool.close()
    assert after.results == [20]
    assert stuck.results == [None] * 10


def test_an_error_of_the_computation_is_raised_to_whoever_waits() -> None:
    def compute(record: Record, attempt: int) -> int:
        raise SystemExit(3)

    pool = Pool(2, Ordering.KEY, compute, "test")
    made = pool.submit(records(3))
    with pytest.raises(SystemExit):
        wait_for(pool, made)


def test_what_is_cancelled_while_it_is_under_way_is_not_tried_again_and_its_lane_goes_on() -> None:
    under_way, cancelled = threading.Event(), threading.Event()
    attempts: list[int] = []

    def compute(record: Record, attempt: int) -> int:
        attempts.append(record.offset)
        if record.offset == 0:
            under_way.set()
            assert cancelled.wait(LONG)
            raise Later(3600)
        return record.offset

    pool = Pool(2, Ordering.PARTITION, compute, "test")
    stuck = pool.submit(records(1))
    assert under_way.wait(LONG)
    pool.cancel([stuck])
    after = pool.submit([Record("t", 0, 20)])
    assert attempts == [0], "the lane waits for what is under way"
    cancelled.set()
    wait_for(pool, after)
    pool.close()
    assert attempts == [0, 20]


def test_an_error_that_nobody_waits_for_any_more_ends_nothing() -> None:
    under_way, cancelled = threading.Event(), threading.Event()

    def compute(record: Record, attempt: int) -> int:
        if record.offset == 0:
            under_way.set()
            assert cancelled.wait(LONG)
            raise ValueError("too late")
        return record.offset

    pool = Pool(1, Ordering.KEY, compute, "test")
    gone = pool.submit(records(1))
    assert under_way.wait(LONG)
    pool.cancel([gone])
    cancelled.set()
    wait_for(pool, pool.submit([Record("t", 0, 20)]))
    pool.close()


def test_what_has_not_begun_when_it_is_cancelled_never_does_and_takes_no_room() -> None:
    under_way, go = threading.Event(), threading.Event()
    seen: list[int] = []

    def compute(record: Record, attempt: int) -> int:
        seen.append(record.offset)
        under_way.set()
        assert go.wait(LONG)
        return record.offset

    pool = Pool(1, Ordering.KEY, compute, "test")
    pool.submit(records(1))
    assert under_way.wait(LONG)
    pool.cancel([pool.submit(records(1000, keys=100)) for _ in range(3)])
    assert sum(map(len, pool._lanes.values())) == 0
    after = pool.submit([Record("t", 0, 2000, b"3"), Record("t", 1, 2001, b"0")])
    go.set()
    wait_for(pool, after)
    pool.close()
    assert seen == [0, 2000, 2001]


def test_a_pool_on_hold_begins_with_nothing_and_retries_nothing() -> None:
    tried = threading.Event()
    seen: list[tuple[int, int]] = []

    def compute(record: Record, attempt: int) -> int:
        seen.append((record.offset, attempt))
        tried.set()
        if attempt == 1:
            raise Later(0.01)
        return record.offset

    pool = Pool(4, Ordering.KEY, compute, "test")
    pool.hold(True)
    made = pool.submit(records(3))
    pool.wait(0.05)
    assert seen == []
    pool.hold(False)
    assert tried.wait(LONG)
    wait_for(pool, made)
    assert sorted(seen) == [(offset, attempt) for offset in range(3) for attempt in (1, 2)]
    pool.close()


def test_a_closed_pool_forgets_what_has_not_begun() -> None:
    under_way, go = threading.Event(), threading.Event()

    def compute(record: Record, attempt: int) -> int:
        under_way.set()
        assert go.wait(LONG)
        return record.offset

    pool = Pool(1, Ordering.KEY, compute, "test")
    made = pool.submit(records(3))
    assert under_way.wait(LONG)
    pool.close()
    go.set()
    for thread in pool._threads:
        thread.join(LONG)
        assert not thread.is_alive()
    assert (made.results, made.is_done) == ([0, None, None], False)


def test_of_two_errors_the_first_one_counts() -> None:
    first = threading.Event()

    def compute(record: Record, attempt: int) -> int:
        if record.offset == 1:
            assert first.wait(LONG)
        raise ValueError(record.offset)

    pool = Pool(2, Ordering.KEY, compute, "test")
    made = pool.submit(records(2))
    with pytest.raises(ValueError, match="0"):
        wait_for(pool, made)
    first.set()
    for thread in pool._threads:
        thread.join(LONG)
    with pytest.raises(ValueError, match="0"):
        pool.check()
