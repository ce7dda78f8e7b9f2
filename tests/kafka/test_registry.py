"""The client of the schema registry, with a real one, with servers that misbehave, and without any."""

from __future__ import annotations

import json
import os
import pickle
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.processes import nothing_collected

from tidegate.core.schemas import (
    Framed,
    Reference,
    Schema,
    SchemaKind,
    SubjectName,
    UnknownSchema,
    WithoutSchema,
    framed,
    unframed,
)
from tidegate.errors import ConfigurationError, RegistryUnavailable, SchemaRefused
from tidegate.kafka import RegistryClient, RegistrySettings
from tidegate.kafka.registry import open_registry
from tidegate.sandbox import Registry
from tidegate.settings import Settings


def record(name: str, **fields: Any) -> Schema:
    listed = [{"name": field, "type": kind} for field, kind in fields.items()]
    return Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": name, "fields": listed}))


class Ticks:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def subject() -> str:
    return f"s/ubject {secrets.token_hex(4)}-value"


@pytest.fixture
def clock() -> Ticks:
    return Ticks()


@pytest.fixture
def client(registry: Registry, clock: Ticks) -> Iterator[RegistryClient]:
    found = RegistryClient(RegistrySettings(registry.url), clock=clock)
    yield found
    found.close()


def test_schemas_are_registered_and_found(client: RegistryClient, subject: str) -> None:
    schema = record("A", a="int")
    with pytest.raises(UnknownSchema, match="not registered under the subject"):
        client.id_of(subject, schema, register=False)
    number = client.id_of(subject, schema, register=True)
    assert client.id_of(subject, schema, register=False) == number
    assert client.by_id(number) == schema
    assert client.latest(subject) == (number, 1, schema)
    assert subject in client.subjects()


def test_references_are_followed_transitively(client: RegistryClient, subject: str) -> None:
    cents = record("Cents", n="long")
    money = record("Money", cents="Cents")
    order = record("Order", total="Money", spare="Cents")
    client.id_of(f"{subject}-cents", cents, register=True)
    of_cents = Reference("Cents", f"{subject}-cents", 1, cents)
    money = Schema(SchemaKind.AVRO, money.text, (of_cents,))
    client.id_of(f"{subject}-money", money, register=True)
    of_money = Reference("Money", f"{subject}-money", 1, money)
    order = Schema(SchemaKind.AVRO, order.text, (of_money, of_cents))
    number = client.id_of(subject, order, register=True)
    fresh = RegistryClient(client.settings)
    assert fresh.by_id(number) == order
    assert fresh.latest(subject).schema == order
    fresh.close()


def test_a_schema_that_is_invalid_or_not_compatible_is_refused(client: RegistryClient, subject: str) -> None:
    with pytest.raises(SchemaRefused, match="refuses the schema"):
        client.id_of(subject, Schema(SchemaKind.AVRO, '{"type": "nonsense"}'), register=True)
    client.id_of(subject, record("A", a="int"), register=True)


def test_what_is_unknown_is_asked_for_again_after_a_while(client: RegistryClient, subject: str, clock: Ticks) -> None:
    with pytest.raises(UnknownSchema, match="does not know the id 99999"):
        client.by_id(99_999)
    with pytest.raises(UnknownSchema, match="no subject"):
        client.latest(subject)
    number = client.id_of(subject, record("A", a="int"), register=True)
    with pytest.raises(UnknownSchema):  # the answer is kept
        client.latest(subject)
    clock.now += 11
    assert client.latest(subject).id == number


def test_a_later_version_is_found_after_a_while(client: RegistryClient, subject: str, clock: Ticks) -> None:
    first = client.id_of(subject, record("A", a="int"), register=True)
    assert client.latest(subject).id == first
    second = client.id_of(subject, record("A", a="int", b=["null", "int"]), register=True)
    assert client.latest(subject).id == first
    clock.now += 61
    assert client.latest(subject).id == second


def test_schemas_that_are_known_need_no_registry(registry: Registry, subject: str, clock: Ticks) -> None:
    """A connection that the registry has closed meanwhile is opened again; what is cached is not asked for."""
    with Registry(directory=None) as own:
        client = RegistryClient(RegistrySettings(own.url), clock=clock)
        schema = record("A", a="int")
        number = client.id_of(subject, schema, register=True)
        assert client.by_id(number) == schema
        client.latest(subject)
        own.kill()
        assert client.by_id(number) == schema
        clock.now += 100
        assert client.latest(subject).id == number
        with pytest.raises(RegistryUnavailable, match="did not answer: .*refused"):
            client.by_id(number + 1)
        own.start()
        with pytest.raises(UnknownSchema):
            client.by_id(number + 1)
        client.close()


@contextmanager
def answering(*parts: bytes, pause: float = 0.0) -> Iterator[str]:
    """A server that sends these bytes to everyone, with a pause after each part, and keeps the connection open."""
    stopping = threading.Event()
    server = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            for part in parts:
                try:
                    connection.sendall(part)
                except OSError:
                    return
                stopping.wait(pause)
            stopping.wait(20)

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        stopping.set()
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def answer(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([answer("404 Not Found", b"<html>")], "no such address"),
        ([answer("404 Not Found", b'{"error_code": 404}')], "no such address"),
        ([answer("200 OK", b"<html>")], "not JSON"),
        ([answer("200 OK", b"7")], "not JSON"),
        ([answer("200 OK", b"{}")], "without a schema"),
        ([answer("200 OK", b"[" * 100_000)], "not JSON"),
        ([answer("404 Not Found", b'{"error_code": [1]}')], "no such address"),
        ([answer("422 Unprocessable", b'{"error_code": 42202, "message": "x"}')], "status 422"),
        ([answer("409 Conflict", b'{"error_code": 40901}')], "status 409"),
        ([answer("503 Busy", b"")], "status 503"),
        ([answer("302 Found", b"")], "status 302"),
        ([answer("403 Forbidden", b"")], "refused the login"),
        ([b"nonsense\r\n\r\n"], "did not answer"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"], "no answer within 0.4 s"),
        ([], "no answer within 0.4 s"),
        ([b"HTTP/1.1 200 OK\r\n"] + [b"X: y\r\n"] * 200, "no answer within 0.4 s"),
    ],
)
def test_an_answer_that_is_none_is_an_outage(parts: list[bytes], why: str) -> None:
    """Also one that comes byte by byte, for ever: no single wait is too long."""
    with answering(*parts, pause=0.05) as url:
        client = RegistryClient(RegistrySettings(url, timeout=0.4))
        with pytest.raises(RegistryUnavailable, match=why):
            client.by_id(1)
        client.close()


@contextmanager
def serving(answers: Callable[[str], tuple[int, bytes]]) -> Iterator[tuple[str, list[str]]]:
    """A registry that answers each path by a function; its URL, and the paths that were asked for."""
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.path)
            status, body = answers(self.path)
            with suppress(OSError):
                self.wfile.write(answer(f"{status} x", body))

        def log_message(self, *_: Any) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def of_schema(*references: tuple[str, int], **more: Any) -> bytes:
    listed = [
        {"name": f"{place}", "subject": subject, "version": version}
        for place, (subject, version) in enumerate(references)
    ]
    return json.dumps({"schema": '"int"', "references": listed, **more}).encode()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (of_schema(schemaType="XML"), "a kind that is not known here"),
        (of_schema(schemaType=[1]), "a kind that is not known here"),
        (of_schema(references=5), "references that cannot be read"),
        (of_schema(references=[{"name": 1}]), "references that cannot be read"),
        (of_schema(references=[{"name": "a", "subject": "b", "version": float("inf")}]), "references that cannot"),
        (of_schema(references=[{"name": "a", "subject": "\ud800", "version": 1}]), "references that cannot"),
        (of_schema(schema="x" * (17 << 20)), "larger than 16 MiB"),
    ],
)
def test_a_schema_that_cannot_be_used_is_no_outage(body: bytes, why: str, clock: Ticks) -> None:
    """It never becomes one that can, and would stop its partition for good."""
    with serving(lambda path: (200, body)) as (url, asked):
        client = RegistryClient(RegistrySettings(url), clock=clock)
        for _ in range(3):
            with pytest.raises(UnknownSchema, match=f"schema 7: .*{why}"):
                client.by_id(7)
        assert asked == ["/schemas/ids/7"]
        clock.now += 11
        with pytest.raises(UnknownSchema, match=why):
            client.by_id(7)
        assert len(asked) == 2
        client.close()


def test_ids_that_no_registry_has_are_not_asked_for() -> None:
    """Registries take ids as integers of Java, and answer a larger one as an address that they do not have."""
    with serving(lambda path: (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}')) as (url, asked):
        client = RegistryClient(RegistrySettings(url))
        for number in (2**31, 2**32 - 1):
            with pytest.raises(UnknownSchema, match=f"does not know the id {number}"):
                client.by_id(number)
        assert asked == []
        with pytest.raises(RegistryUnavailable):
            client.by_id(2**31 - 1)
        client.close()


def test_a_request_is_bounded_also_if_it_has_no_socket_yet_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the first of two addresses is silent: the server then answers byte by byte, for ever."""
    create = socket.create_connection

    def slowly(*args: Any, **more: Any) -> socket.socket:
        time.sleep(0.4)
        return create(*args, **more)

    with answering(b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n"] * 50, pause=0.1) as url:
        monkeypatch.setattr(socket, "create_connection", slowly)
        client = RegistryClient(RegistrySettings(url, timeout=0.2))
        began = time.monotonic()
        with pytest.raises(RegistryUnavailable, match=r"no answer within 0.2 s"):
            client.by_id(1)
        assert time.monotonic() - began < 3
        client.close()


def test_a_thread_does_not_wait_for_the_requests_of_others_for_ever() -> None:
    with serving(lambda path: (200, of_schema())) as (url, _):
        client = RegistryClient(RegistrySettings(url, timeout=0.2))
        with client._asking, pytest.raises(RegistryUnavailable, match=r"did not answer: other requests took 0.2 s"):
            client.by_id(1)
        client.by_id(1)
        client.close()


def test_a_fork_while_a_thread_asks_leaves_the_child_a_client_that_works() -> None:
    asking, ending = threading.Event(), threading.Event()

    def answers(path: str) -> tuple[int, bytes]:
        if path.endswith("/1"):
            asking.set()
            ending.wait(20)
        return 200, of_schema()

    with serving(answers) as (url, _):
        client = RegistryClient(RegistrySettings(url, timeout=30))
        thread = threading.Thread(target=client.by_id, args=(1,))
        thread.start()
        asking.wait(10)
        with nothing_collected():
            child = os.fork()
            if child == 0:
                try:
                    client.by_id(2)
                except BaseException as error:
                    os.write(2, f"{error!r}\n".encode())
                    os._exit(1)
                os._exit(0)
        _, status = os.waitpid(child, 0)
        ending.set()
        thread.join()
        assert status == 0
        client.by_id(3)
        client.close()


def test_a_schema_with_an_unknown_reference_is_named_and_kept(clock: Ticks) -> None:
    def answers(path: str) -> tuple[int, bytes]:
        if "/ids/" in path or path.endswith("latest"):
            return 200, of_schema(("b", 1), id=7, version=1)
        return 404, b'{"error_code": 40402}'

    with serving(answers) as (url, asked):
        client = RegistryClient(RegistrySettings(url), clock=clock)
        for _ in range(3):
            with pytest.raises(UnknownSchema, match="schema 7: .*version 1 of 'b'"):
                client.by_id(7)
            with pytest.raises(UnknownSchema, match="subject 's': .*version 1 of 'b'"):
                client.latest("s")
        assert len(asked) == 4
        client.close()


def number_in(path: str) -> int:
    """The place of a schema in a chain: that of ``/subjects/s5/versions/1`` is 5, and the first one is asked by id."""
    return 0 if "/ids/" in path else int(path.split("/subjects/s")[1].partition("/")[0])


@pytest.mark.parametrize(("width", "length"), [(1, 600), (2, 26), (200, 3)])
def test_references_are_followed_within_bounds(width: int, length: int) -> None:
    """Each schema refers to the next one, so many times: what they become together doubles with each of them."""

    def answers(path: str) -> tuple[int, bytes]:
        at = number_in(path)
        return 200, of_schema(*[(f"s{at + 1}", 1)] * (width if at < length else 0))

    with serving(answers) as (url, asked):
        client = RegistryClient(RegistrySettings(url))
        with pytest.raises(UnknownSchema, match="schema 1: .*too many references"):
            client.by_id(1)
        assert len(asked) <= 60
        client.close()


def test_references_that_are_shared_can_be_used() -> None:
    def answers(path: str) -> tuple[int, bytes]:
        at = number_in(path)
        return 200, of_schema(*[(f"s{at + 1}", 1)] * (2 if at < 8 else 0))

    with serving(answers) as (url, asked):
        client = RegistryClient(RegistrySettings(url))
        schema = client.by_id(1)
        assert len(asked) == 9
        for _ in range(8):
            assert len(schema.references) == 2
            schema = schema.references[1].schema
        client.close()


def test_references_that_do_not_end_cannot_be_used() -> None:
    """A registry whose schema refers to itself is asked a bounded number of times."""
    with serving(lambda path: (200, of_schema(("s", 1)))) as (url, asked):
        client = RegistryClient(RegistrySettings(url, timeout=2))
        with pytest.raises(UnknownSchema, match="schema 1: .*do not end"):
            client.by_id(1)
        assert len(asked) == 2
        client.close()


def test_the_login_is_needed_and_masked() -> None:
    with Registry(login=True) as server:
        assert server.password is not None
        given = RegistrySettings(server.url, user=server.user, password=server.password)
        in_url = RegistrySettings(server.url.replace("http://", f"http://{server.user}:{server.password}@"))
        for settings in (given, in_url):
            client = RegistryClient(settings)
            assert client.subjects() == []
            shown = f"{settings!r} {settings.shown()} {client} {client!r}"
            assert server.password not in shown
            copy = pickle.loads(pickle.dumps(client))
            assert copy.subjects() == []
            client.close()
            copy.close()
        for settings in (RegistrySettings(server.url), RegistrySettings(server.url, token="a-token")):
            client = RegistryClient(settings)
            with pytest.raises(RegistryUnavailable, match="refused the login") as raised:
                client.subjects()
            client.close()
            assert "a-token" not in str(raised.value) + repr(settings)


def test_settings_that_contradict_each_other_are_refused() -> None:
    for given, why in (
        ({"url": "localhost:8081"}, "url"),
        ({"url": "ftp://localhost"}, "url"),
        ({"url": "http://localhost:port"}, "url"),
        ({"url": "http://a?b=c"}, "url"),
        ({"url": "http://[::1"}, "url"),
        ({"url": "http://a b"}, "url"),
        ({"url": "http://a "}, "url"),
        ({"url": "http://a..b"}, "url"),
        ({"url": "http://a/b c"}, "url"),
        ({"url": "http://a/ü"}, "url"),
        ({"url": "http://a", "user": "u:v", "password": "p"}, "colon"),
        ({"url": "http://u%3Av:p@a"}, "colon"),
        ({"url": "http://a", "password": "p"}, "needs 'user'"),
        ({"url": "http://a", "user": "u"}, "needs 'password'"),
        ({"url": "http://a", "user": "u", "password": "p", "token": "t"}, "two ways"),
        ({"url": "http://u:p@a", "token": "t"}, "given twice"),
        ({"url": "http://a", "token": "secret\nHeader: x"}, "token"),
        ({"url": "http://a", "timeout": 0}, "timeout"),
        ({"url": "http://a", "key": "k"}, "needs 'certificate'"),
    ):
        with pytest.raises(ConfigurationError, match=why) as raised:
            RegistrySettings(**given)  # type: ignore[arg-type]
        assert "secret" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="registry: ca .* cannot be read"):
        RegistryClient(RegistrySettings("https://a", ca="/nowhere.pem"))
    assert open_registry(RegistrySettings()) is None
    assert open_registry("http://a") is open_registry(RegistrySettings("http://a"))


ASKING = """
import pty, sys
pty.spawn([sys.executable, "-c", '''
from tidegate.kafka import RegistryClient, RegistrySettings
RegistryClient(RegistrySettings("https://a", certificate="cert.pem", key="key.pem"))
'''])
"""


def test_the_password_of_a_key_is_not_asked_for_on_the_terminal(tmp_path: Path) -> None:
    files = ["-subj", "/CN=a", "-keyout", "key.pem", "-out", "cert.pem", "-passout", "pass:of-the-key"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", *files], cwd=tmp_path, check=True, capture_output=True
    )
    found = subprocess.run(
        [sys.executable, "-c", ASKING], cwd=tmp_path, input=b"", capture_output=True, timeout=60, check=False
    )
    assert b"with key 'key.pem' and no key_password cannot be read" in found.stdout
    assert b"pass phrase" not in found.stdout


def test_settings_come_from_the_file_and_the_environment(tmp_path: Any) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text('[registry]\nurl = "http://here:8081"\nuser = "me"\npassword = "${SECRET}"\n')
    environ = {"SECRET": "of-mine", "TIDEGATE_REGISTRY__TIMEOUT": "3"}
    found = Settings.load(file, environ).registry
    assert found == RegistrySettings("http://here:8081", user="me", password="of-mine", timeout=3.0)
    assert "of-mine" not in repr(found)
    assert Settings.load(file, {**environ, "TIDEGATE_REGISTRY": "https://there"}).registry.url == "https://there"


def test_ids_are_read_from_values_and_headers() -> None:
    assert unframed(framed(7, b"abc"), (), "value") == Framed(7, b"abc")
    assert unframed(framed(2**32 - 1, b""), (), "value") == Framed(2**32 - 1, b"")
    assert unframed(b"abc", [("__value_schema_id", framed(7, b""))], "value") == Framed(7, b"abc", b"")
    assert unframed(b"abc", [("__key_schema_id", framed(7, b"\2\2"))], "key") == Framed(7, b"abc", b"\2\2")
    assert unframed(b"abc", [("apicurio.value.contentId", (7).to_bytes(8, "big"))], "value") == Framed(7, b"abc", b"")
    both = [("__value_schema_id", framed(7, b"")), ("__value_schema_id", framed(8, b""))]
    assert unframed(b"abc", both, "value") == Framed(8, b"abc", b"")
    assert unframed(framed(7, b"abc"), [("__key_schema_id", b"?"), ("other", None)], "value") == Framed(7, b"abc")
    for data, headers, why in (
        (b"", [], "too short"),
        (b"\1\0\0\0\1", [], "does not begin with the id of a schema"),
        (b"abc", [("__value_schema_id", b"\1" + bytes(16))], "GUID"),
        (b"abc", [("__value_schema_id", None)], "no id"),
        (b"abc", [("apicurio.value.contentId", b"1")], "no id"),
    ):
        with pytest.raises(WithoutSchema, match=why):
            unframed(data, headers, "value")


def test_subjects_are_named_as_by_other_serializers() -> None:
    assert SubjectName.TOPIC.of("t", "key", "a.B") == "t-key"
    assert SubjectName.RECORD.of("t", "value", "a.B") == "a.B"
    assert SubjectName.TOPIC_RECORD.of("t", "value", "a.B") == "t-a.B"
