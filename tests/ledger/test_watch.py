"""Waits for a store are bounded, and one that was answered in time is left alone."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from tests.patience import wait_until

from tidegate.ledger.watch import Line, Watch


class Lost(Exception):
    pass


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def line(watch: Watch, near: socket.socket) -> Line:
    return watch.line(near.fileno, Lost)


def receive(near: socket.socket) -> bytes:
    if not (data := near.recv(1)):
        raise ConnectionError("it was shut")
    return data


def test_a_wait_that_takes_too_long_is_broken_off_and_says_why(pair: tuple[socket.socket, socket.socket]) -> None:
    near, _ = pair
    watch = Watch(0.2)
    with pytest.raises(Lost, match="which is the limit 'answer'"):
        line(watch, near).watched(receive)(near)
    assert watch.silence >= 0.2
    assert not watch.waiting


def test_a_connection_that_its_driver_has_lost_does_not_end_the_watch(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, _ = pair
    watch = Watch(0.2)
    lost, ended = watch.line(lambda: 1 // 0, Lost), threading.Event()
    waiting = threading.Thread(target=lost.watched(ended.wait))
    waiting.start()
    wait_until(lambda: lost.reason is not None, "the connection is noted as lost")
    with pytest.raises(Lost):
        line(watch, near).watched(receive)(near)
    ended.set()
    waiting.join()


def test_an_answer_ends_the_silence_and_an_error_of_the_servers_is_one(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    watch = Watch(60)
    wait = line(watch, near).watched(receive)
    far.send(b"a")
    assert wait(near) == b"a"
    assert watch.silence == 0

    class Refused(Exception):
        sqlstate = "23505"

    def refuse() -> None:
        raise Refused

    with pytest.raises(Refused):
        line(watch, near).watched(refuse)()
    assert watch.silence == 0


def test_the_next_wait_of_a_connection_is_not_broken_off_for_the_one_before(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    watch = Watch(60)
    watched = line(watch, near)
    wait = watched.watched(receive)
    since: list[float] = []
    first, second = threading.Event(), threading.Event()

    def both() -> None:
        for noted in (first, second):
            noted.set()
            wait(near)

    waiting = threading.Thread(target=both)
    waiting.start()
    first.wait()
    wait_until(lambda: watched in watch.waiting, "the first wait")
    since.append(watch.waiting[watched])
    far.send(b"a")
    second.wait()
    wait_until(lambda: watch.waiting.get(watched, since[0]) != since[0], "the second wait")
    watched.break_off(since[0], time.monotonic())  # by whoever has looked too long ago
    far.send(b"b")
    waiting.join(10)
    assert not waiting.is_alive()
    assert watched.reason is None


def test_in_a_hurry_a_wait_that_has_begun_before_has_its_time_from_then_on(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    watch = Watch(60)
    began = time.monotonic() - 50
    assert watch.bound(began) == began + 60
    watch.hurry(5)
    assert time.monotonic() + 4 < watch.bound(began) < time.monotonic() + 6
    watch.unheard(began)
    assert watch.is_over
    watch.heard()
    assert not watch.is_over
    watch.hurry(None)
    assert watch.bound(began) == began + 60
