"""Requests that try to exhaust the dashboard, to outlast it or to outlive their session."""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tidegate.errors import ChangeRefused
from tidegate.web.changes import _numbers
from tidegate.web.security import Token

from .conftest import CHOSEN, Place
from .served import SECONDS, Served

HASTY = """
from tidegate.web import application
application._REQUEST = application._WRITE = 0.5
from tidegate.cli.options import app
app()
"""
FEW = """
from tidegate.web import application
application._MOST_CONNECTIONS = 8
from tidegate.cli.options import app
app()
"""
STREAMS = 64


def connected(served: Served) -> socket.socket:
    host, _, port = served.host.rpartition(":")
    return socket.create_connection((host, int(port)), SECONDS)


def request(served: Served, path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {served.host}", *headers, "", ""]).encode()


def status(client: socket.socket) -> int:
    return int(client.makefile("rb").readline().split()[1])


def is_closed(client: socket.socket) -> bool:
    """Waits for the end of the connection, and reads what comes before it."""
    try:
        while client.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.fixture(scope="module")
def hasty(place: Place) -> Iterator[Served]:
    """A dashboard that has no patience."""
    environ = {"TIDEGATE_LEDGER": place.url, "TIDEGATE_DASHBOARD_TOKEN": CHOSEN}
    started = Served.start(place.folder, "--no-kafka", program=("-c", HASTY), **environ)
    started.token = CHOSEN
    yield started
    started.close()


def test_ranges_of_partitions_are_limited_all_together() -> None:
    assert len(_numbers("0-49999; 50000-99998, 7") or ()) == 99_999
    many = ",".join(f"{first * 60_000}-{first * 60_000 + 59_999}" for first in range(10))
    with pytest.raises(ChangeRefused, match="100,000 partitions at most"):
        _numbers(many)


def test_a_form_that_names_no_partition_by_mistake_does_not_mean_all_of_them() -> None:
    assert _numbers(" ") is None  # all of them
    assert _numbers(" ,") == set()  # none, which a change refuses


def test_a_body_in_chunks_is_refused(served: Served) -> None:
    common = (f"Origin: {served.address.rstrip('/')}", "Content-Type: application/x-www-form-urlencoded")
    for length in ((), ("Content-Length: 5",)):
        with closing(connected(served)) as client:
            chunked = (*common, *length, "Transfer-Encoding: chunked")
            client.sendall(request(served, "/login", *chunked, method="POST") + b"5\r\ntoken\r\n")
            assert status(client) in {400, 403, 413}


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "//", "http://a:b:c", "\xff"])
def test_an_origin_that_is_no_address_is_another_one(served: Served, origin: str) -> None:
    assert served.ask("/login", form={"token": "x"}, headers={"Origin": origin}).status == 403


def test_a_stream_ends_with_its_session(served: Served) -> None:
    cookie = served.log_in()
    with closing(connected(served)) as client, closing(connected(served)) as other:
        client.sendall(request(served, "/events/overview", f"Cookie: {cookie}"))
        other.sendall(request(served, "/events/overview", f"Cookie: {served.log_in()}"))
        assert (status(client), status(other)) == (200, 200)
        assert served.ask("/logout", cookie=cookie, form={"csrf": served.csrf(cookie)}).status == 303
        client.settimeout(10)
        assert is_closed(client)
        other.settimeout(0.2)
        assert not is_closed(other), "the stream of another session goes on"


def test_no_more_streams_than_allowed_are_open_however_they_are_asked_for(read_only: Served) -> None:
    cookie = read_only.log_in()
    asked = request(read_only, "/events/overview", f"Cookie: {cookie}")
    with ExitStack() as opened:
        clients = [opened.enter_context(closing(connected(read_only))) for _ in range(STREAMS + 16)]
        for client in clients:
            client.sendall(asked)
        answers = [status(client) for client in clients]
        assert (answers.count(200), answers.count(503)) == (STREAMS, 16)
    deadline = time.monotonic() + SECONDS
    while True:  # the places are free again once the server has seen that the clients are gone
        with closing(connected(read_only)) as client:
            client.sendall(asked)
            if status(client) == 200:
                return
        assert time.monotonic() < deadline


def test_idle_connections_keep_nobody_out(place: Place) -> None:
    environ = {"TIDEGATE_LEDGER": place.url, "TIDEGATE_DASHBOARD_TOKEN": CHOSEN}
    started = Served.start(place.folder, "--no-kafka", program=("-c", FEW), **environ)
    started.token = CHOSEN
    try:
        with ExitStack() as opened:
            idle = [opened.enter_context(closing(connected(started))) for _ in range(20)]
            assert started.log_in()
            assert is_closed(idle[0]), "those that have waited longest make room"
            idle[-1].sendall(request(started, "/login"))
            assert status(idle[-1]) == 200
    finally:
        started.close()


@pytest.mark.parametrize("sent", ["", "GET / HTTP/1.1\r\nHost: ", "POST"])
def test_a_client_that_does_not_finish_its_request_is_dropped(hasty: Served, sent: str) -> None:
    with closing(connected(hasty)) as client:
        if sent == "POST":
            origin = f"Origin: {hasty.address.rstrip('/')}"
            kind = "Content-Type: application/x-www-form-urlencoded"
            sent = request(hasty, "/login", origin, kind, "Content-Length: 100", method="POST").decode()
        client.sendall(sent.encode())
        client.settimeout(0.1)
        dripping = time.monotonic() + 20
        while not is_closed(client):
            assert time.monotonic() < dripping, "it still listens"
            if sent:
                try:
                    client.send(b"x")
                except OSError:
                    break


def test_a_client_that_does_not_read_is_dropped(hasty: Served, place: Place) -> None:
    group = place.park(b"x" * (30 << 20))
    number = place.ledger.dead_letters(group)[0].id
    cookie = hasty.log_in()
    with closing(connected(hasty)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(request(hasty, f"/letter/value?group={group}&id={number}", f"Cookie: {cookie}"))
        deadline = time.monotonic() + 120
        while not _is_given_up(client):
            assert time.monotonic() < deadline, "it still waits for the client"
            time.sleep(0.1)


def _is_given_up(client: socket.socket) -> bool:
    """Whether the server has closed its end, without reading what it has sent: no process holds that socket."""
    port = f":{client.getsockname()[1]:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return all(row[9] == "0" for row in rows if row[2].endswith(port))


def test_a_stream_of_a_patient_client_is_not_dropped(hasty: Served) -> None:
    with closing(connected(hasty)) as client:
        client.sendall(request(hasty, "/events/overview", f"Cookie: {hasty.log_in()}"))
        assert status(client) == 200
        client.settimeout(2)  # four times as long as a request may take
        assert not is_closed(client)


def test_a_link_opens_once() -> None:
    token = Token()
    first, second = token.ticket(), token.ticket()
    assert first != second
    assert token.opens(first)
    assert not token.opens(first)
    assert token.opens(second)
    assert not token.opens("")


def test_the_printed_link_works_once_and_the_next_one_is_printed(place: Place) -> None:
    started = Served.start(place.folder, "--no-kafka", TIDEGATE_LEDGER=place.url)
    try:
        used = started.token
        assert started.log_in()
        assert started.ask("/login", form={"token": used}).status == 403
        assert started.process.stdout is not None
        line = started.process.stdout.readline()
        found = re.search(r"/login#(\S+)", line)
        assert found, line
        assert found[1] != used
        started.token = found[1]
        assert started.log_in()
    finally:
        started.close()


@pytest.mark.parametrize("topic", ["a\r\nSet-Cookie: x=1", "\N{SNOWMAN}", 'a"; filename=x', "ä" * 300])
def test_a_letter_of_any_topic_can_be_downloaded(served: Served, place: Place, topic: str) -> None:
    group = place.park(b"content")
    engine = create_engine(place.url)
    with engine.begin() as conn:
        named = {"topic": topic, "group": group}
        conn.execute(text("UPDATE tidegate_dead_letters SET topic = :topic WHERE consumer_group = :group"), named)
    engine.dispose()
    number = place.ledger.dead_letters(group)[0].id
    answer = served.ask(f"/letter/value?group={group}&id={number}", cookie=served.log_in())
    assert (answer.status, answer.text) == (200, "content")
    assert "set-cookie" not in answer.headers
    assert len(answer.headers["content-disposition"]) < 1500
    assert served.ask(f"/letters?group={group}", cookie=served.log_in()).status == 200


def test_a_session_cannot_be_guessed(served: Served) -> None:
    name = f"tidegate-{served.host.rpartition(':')[2]}"
    assert served.ask("/", cookie=f"{name}={secrets.token_urlsafe(32)}").status == 303
