"""The client of a schema registry, by the REST API of Confluent's, and the settings that name one."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, TypeAlias
from urllib.parse import quote, unquote, urlsplit

from tidegate.core.arguments import Accepts, Label, Seconds, argument, convert_arguments
from tidegate.core.masks import Masked, masked, shown
from tidegate.core.schemas import Reference, Registered, Schema, SchemaKind, SchemaRegistry, UnknownSchema
from tidegate.core.text import is_text
from tidegate.errors import ConfigurationError, RegistryUnavailable, SchemaRefused

__all__ = ["RegistryArgument", "RegistryClient", "RegistryGiven", "RegistrySettings", "open_registry"]

_ACCEPTED = "application/vnd.schemaregistry.v1+json, application/vnd.schemaregistry+json, application/json"
_UNKNOWN_SECONDS = 10.0  # how long the answer that a schema is unknown is kept
_LATEST_SECONDS = 60.0  # how long the latest version of a subject is kept
_MOST_UNKNOWN = 10_000  # negative answers that are kept: ids in records are foreign input
_MOST_BYTES = 16 << 20  # of an answer
_MOST_REFERENCES = 10_000  # of one schema, all levels together, each as often as it is referred to
_MOST_LEVELS = 50  # of references
_MOST_ID = 2**31 - 1  # registries take ids as integers of Java, and a larger one for a wrong address
_END_SECONDS = 0.1  # between two attempts to end a request that is late
_UNKNOWN_CODES = {40401, 40402, 40403}  # subject, version, schema
_REFUSED = {http.HTTPStatus.CONFLICT, http.HTTPStatus.UNPROCESSABLE_ENTITY}
_LOGIN = {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}
_PORTS = {"http": 80, "https": 443}
_BLANK = re.compile(r"[\s\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, repr=False)
class RegistrySettings(Masked):
    """Where the schema registry is, and how to log in: with user and password, or with a token.

    ``ca`` is a file with the certificates to trust, by default those of the system; ``certificate`` and ``key`` are the
    files of a client certificate. No request takes longer than ``timeout`` seconds.
    """

    url: Label | None = None
    user: Label | None = None
    password: Label | None = None
    token: Label | None = None
    ca: Label | None = None
    certificate: Label | None = None
    key: Label | None = None
    key_password: Label | None = None
    timeout: Seconds = 10.0

    def __post_init__(self) -> None:
        convert_arguments(self)
        for name, needed in (
            ("password", "user"),
            ("user", "password"),
            ("key", "certificate"),
            ("key_password", "key"),
        ):
            if getattr(self, name) is not None and getattr(self, needed) is None:
                raise ConfigurationError(f"{name!r} needs {needed!r}")
        if self.user is not None and self.token is not None:
            raise ConfigurationError("'user' and 'token' are two ways to log in; keep one")
        if self.timeout <= 0:
            raise ConfigurationError("timeout: expected more than 0 seconds")
        for name in ("user", "password", "token"):  # they become a header
            if not str(getattr(self, name) or "").isprintable() or (
                name == "token" and not (self.token or "").isascii()
            ):
                raise ConfigurationError(f"{name}: expected text without line breaks and control characters")
        login = self.login  # raises for a URL that is none
        if login is not None and ":" in login[0]:
            raise ConfigurationError("user: a name with a colon in it cannot log in by HTTP's basic scheme")

    def shown(self) -> dict[str, Any]:
        """Return the settings with secrets masked; those that are not set are shown as such."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: None if value is None else shown(name, value) for name, value in given.items()}

    @property
    def login(self) -> tuple[str, str] | None:
        """User and password, from the settings or from the URL."""
        if self.url is not None and not _is_address(self.url):
            raise ConfigurationError("url: expected the address of a schema registry, such as http://host:8081")
        parts = urlsplit(self.url or "")
        if parts.username is None:
            return None if self.user is None or self.password is None else (self.user, self.password)
        if self.user is not None or self.token is not None:
            raise ConfigurationError("the login is given twice, in the URL and beside it; keep one")
        return unquote(parts.username), unquote(parts.password or "")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")
        has_host = _BLANK.search(parts.hostname or " ") is None and parts.port != 0
    except ValueError:  # such as a port that is no number, or half of the brackets of an IPv6 address
        return False
    is_path = parts.path.isascii() and _BLANK.search(parts.path) is None
    return parts.scheme in _PORTS and has_host and is_path and not (parts.query or parts.fragment)


def _registry(given: Any) -> Any:
    if is_text(given):
        return RegistrySettings(given)
    is_registry = all(callable(getattr(given, name, None)) for name in ("by_id", "latest", "id_of"))
    return given if isinstance(given, RegistrySettings) or (is_registry and not isinstance(given, type)) else None


RegistryGiven: TypeAlias = "str | RegistrySettings | SchemaRegistry"
"""How a schema registry is given: by its URL, by settings, or as an open one."""
RegistryArgument: TypeAlias = Annotated[Any, Accepts("the URL of a schema registry, or RegistrySettings", _registry)]
"""A :data:`RegistryGiven` as an argument."""


def open_registry(given: RegistryGiven | None) -> SchemaRegistry | None:
    """Return the registry that is given; ``None`` if none is, or if the settings have no URL. Nothing is sent yet.

    The same settings get the same client, so that all listeners, producers and tasks of a process share its schemas.
    """
    chosen = argument("registry", RegistryArgument | None, given)
    if not isinstance(chosen, RegistrySettings):
        registry: SchemaRegistry | None = chosen
        return registry
    if chosen.url is None:
        return None
    return _shared(tuple(getattr(chosen, item.name) for item in fields(chosen)))


_CLIENTS: dict[tuple[Any, ...], RegistryClient] = {}
_OPENING = threading.Lock()


def _shared(given: tuple[Any, ...]) -> RegistryClient:
    """Return this process's client for these settings; executors call it when they unpickle one."""
    with _OPENING:
        if given not in _CLIENTS:
            _CLIENTS[given] = RegistryClient(RegistrySettings(*given))
        return _CLIENTS[given]


@dataclass(slots=True)
class _Cache:
    """Answers that were received: schemas for good, the others with the time until which they hold."""

    schemas: dict[int, Schema] = field(default_factory=dict)
    versions: dict[tuple[str, int], Schema] = field(default_factory=dict)
    ids: dict[tuple[str, Schema], int] = field(default_factory=dict)
    latest: dict[str, tuple[float, Registered]] = field(default_factory=dict)
    unknown: dict[Any, tuple[float, str]] = field(default_factory=dict)


class RegistryClient(SchemaRegistry):
    """A client of one schema registry. Create one per process; threads share it and its cache.

    It opens its connection for the first schema that it needs. After a fork, a process has a connection of its own.
    """

    def __init__(self, settings: RegistrySettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        settings = argument("settings", RegistrySettings, settings)
        if settings.url is None:
            raise ConfigurationError("url: a schema registry needs an address, such as http://host:8081")
        self.settings = settings
        self._clock = argument("clock", Callable[[], float], clock)
        parts = urlsplit(settings.url)
        self._host = parts.hostname or ""
        self._port = parts.port or _PORTS[parts.scheme]
        self._path = parts.path.rstrip("/")
        self._tls = _context(settings) if parts.scheme == "https" else None
        self._cache = _Cache()
        self._headers = {"Accept": _ACCEPTED, "Content-Type": "application/vnd.schemaregistry.v1+json"}
        if (login := settings.login) is not None:
            self._headers["Authorization"] = "Basic " + base64.b64encode(":".join(login).encode()).decode()
        elif settings.token is not None:
            self._headers["Authorization"] = f"Bearer {settings.token}"
        self._asking = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        _CLIENTS_HERE.add(self)

    def __str__(self) -> str:
        return f"the schema registry at {self._host}:{self._port}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _shared, (tuple(getattr(self.settings, item.name) for item in fields(self.settings)),)

    def by_id(self, number: int) -> Schema:
        """Return a schema by its id, with its references; raises :class:`UnknownSchema`."""
        found = self._cache.schemas.get(number)
        if found is None:
            why = f"the schema registry does not know the id {number}"
            if number > _MOST_ID:
                raise UnknownSchema(why)
            answer = self._known(number, why, f"/schemas/ids/{number}", f"schema {number}")
            found = self._cache.schemas[number] = self._schema(number, answer, f"schema {number}")
        return found

    def latest(self, subject: str) -> Registered:
        """Return the latest version of a subject; raises :class:`UnknownSchema`. The answer is kept for a minute."""
        until, found = self._cache.latest.get(subject, (0.0, None))
        if found is None or self._clock() >= until:
            why = f"the schema registry has no subject {subject!r}"
            try:
                path = f"/subjects/{quote(subject, safe='')}/versions/latest"
                answer = self._known(subject, why, path, f"subject {subject!r}")
                schema = self._schema(subject, answer, f"subject {subject!r}")
            except RegistryUnavailable:
                if found is None:
                    raise
                return found  # the version of a minute ago is as good as one that is registered in this moment
            found = Registered(_whole(answer, "id"), _whole(answer, "version"), schema)
            self._cache.latest[subject] = self._clock() + _LATEST_SECONDS, found
        return found

    def id_of(self, subject: str, schema: Schema, *, register: bool) -> int:
        """Return the id of a schema under a subject, and register it there if it is new and ``register`` is set."""
        found = self._cache.ids.get((subject, schema))
        if found is not None:
            return found
        body: dict[str, Any] = {"schema": schema.text}
        if schema.kind is not SchemaKind.AVRO:
            body["schemaType"] = schema.kind.value
        if schema.references:
            body["references"] = [
                {"name": each.name, "subject": each.subject, "version": each.version} for each in schema.references
            ]
        path = f"/subjects/{quote(subject, safe='')}"
        if register:
            answer = self._ask("POST", f"{path}/versions", body)
        else:
            why = f"the schema is not registered under the subject {subject!r}"
            answer = self._known((subject, schema), why, path, f"subject {subject!r}", body)
        found = self._cache.ids[subject, schema] = _whole(answer, "id")
        return found

    def subjects(self) -> list[str]:
        """Return the names of all subjects. This is not cached, so it shows whether the registry answers."""
        try:
            answer = self._ask("GET", "/subjects")
        except UnknownSchema:
            answer = None
        if not isinstance(answer, list):
            raise RegistryUnavailable(f"{self} gave an unexpected answer; check the path of its URL")
        return [str(each) for each in answer]

    def after_fork(self) -> None:
        """Begin anew in a child: the socket is the parent's, and a thread that is not here may hold the lock."""
        if self._connection is not None and self._connection.sock is not None:
            os.close(self._connection.sock.detach())  # without a word to the registry, with which the parent goes on
        self._asking, self._connection = threading.Lock(), None

    def close(self) -> None:
        """Close the connection. The next request opens another one."""
        with self._asking:
            self._drop()

    # Answers

    def _known(self, key: Any, why: str, path: str, what: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return an answer; raise :class:`UnknownSchema` if there is none, now or a short while ago."""
        until, kept = self._cache.unknown.get(key, (0.0, ""))
        if self._clock() < until:
            raise UnknownSchema(kept)
        try:
            answer = self._ask("GET" if body is None else "POST", path, body)
        except _UnusableSchema as unusable:
            raise self._unknown(key, f"{what}: {unusable}") from None
        except UnknownSchema:
            raise self._unknown(key, why) from None
        self._cache.unknown.pop(key, None)
        return answer

    def _unknown(self, key: Any, why: str) -> UnknownSchema:
        """Keep the answer that there is no schema for a while, and return it as an error."""
        unknown = self._cache.unknown
        while len(unknown) >= _MOST_UNKNOWN:
            with contextlib.suppress(KeyError, StopIteration, RuntimeError):  # another thread may remove it too
                del unknown[next(iter(unknown))]
        unknown[key] = self._clock() + _UNKNOWN_SECONDS, why
        return UnknownSchema(why)

    def _schema(self, key: Any, answer: Any, what: str) -> Schema:
        try:
            return self._resolved(answer, (), [_MOST_REFERENCES])
        except UnknownSchema as unknown:
            raise self._unknown(key, f"{what}: {unknown}") from None

    def _resolved(self, answer: Any, path: tuple[tuple[str, int], ...], room: list[int]) -> Schema:
        """Return a schema of an answer with its references, which are followed; ``path`` leads to it.

        An answer with a schema is the registry's own. If it cannot be used now, it never can, and is no outage.
        """
        text = answer.get("schema") if isinstance(answer, dict) else None
        if not isinstance(text, str):
            raise RegistryUnavailable(f"{self} gave an answer without a schema; check the path of its URL")
        kind = answer.get("schemaType") or SchemaKind.AVRO.value
        if kind not in SchemaKind.__members__.values():
            raise _UnusableSchema("a schema of a kind that is not known here")
        references = []
        try:
            listed = [
                (str(each["name"]), str(each["subject"]), int(each["version"]))
                for each in answer.get("references") or ()
            ]
            for _, subject, _ in listed:
                subject.encode()
        except (TypeError, KeyError, ValueError, OverflowError):
            raise _UnusableSchema("a schema with references that cannot be read") from None
        for name, subject, version in listed:
            if (subject, version) in path:
                raise _UnusableSchema(f"the references of version {version} of {subject!r} do not end")
            _take(room, len(path))
            references.append(Reference(name, subject, version, self._version(subject, version, path, room)))
        return Schema(SchemaKind(kind), text, tuple(references))

    def _version(self, subject: str, version: int, path: tuple[tuple[str, int], ...], room: list[int]) -> Schema:
        path = (*path, (subject, version))
        found = self._cache.versions.get((subject, version))
        if found is not None:
            _count(found, room, len(path))
            return found
        try:
            answer = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/{version}")
        except _UnusableSchema:
            raise
        except UnknownSchema:
            raise UnknownSchema(
                f"the schema registry does not know version {version} of {subject!r}, which a schema refers to"
            ) from None
        found = self._cache.versions[subject, version] = self._resolved(answer, path, room)
        return found

    # Requests

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request and return its answer, parsed.

        Raises :class:`UnknownSchema` or :class:`SchemaRefused` for what the registry itself answers so, and
        :class:`RegistryUnavailable` for everything else: a proxy in front of it may answer with a 404, too.
        """
        status, data = self._answered(method, self._path + path, None if body is None else json.dumps(body).encode())
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        if status == http.HTTPStatus.OK and len(data) > _MOST_BYTES:
            raise _UnusableSchema(f"an answer that is larger than {_MOST_BYTES >> 20} MiB")
        if status == http.HTTPStatus.OK and isinstance(answer, (dict, list)):
            return answer
        code = answer.get("error_code") if isinstance(answer, dict) else None
        if status == http.HTTPStatus.NOT_FOUND and isinstance(code, int) and code in _UNKNOWN_CODES:
            raise UnknownSchema(path)
        if status in _REFUSED and body is not None and isinstance(code, int):
            raise SchemaRefused(f"{self} refuses the schema ({status}, {code}): {_line(answer)}")
        if status in _LOGIN:
            raise RegistryUnavailable(f"{self} refused the login ({status})")
        if status == http.HTTPStatus.NOT_FOUND:
            raise RegistryUnavailable(f"{self} has no such address ({status}); check the path of its URL")
        if status == http.HTTPStatus.OK:
            raise RegistryUnavailable(f"{self} gave an answer that is not JSON; check the path of its URL")
        raise RegistryUnavailable(f"{self} answered with status {status}")

    def _answered(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        with self._turn():
            is_used = self._connection is not None
            try:
                return self._sent(method, path, body)
            except _Failed as failed:
                # A connection that was idle may have been closed meanwhile. Asking twice does no harm.
                if not is_used or failed.is_late:
                    raise RegistryUnavailable(f"{self} did not answer: {failed}") from None
            try:
                return self._sent(method, path, body)
            except _Failed as failed:
                raise RegistryUnavailable(f"{self} did not answer: {failed}") from None

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        asking, seconds = self._asking, self.settings.timeout
        if not asking.acquire(timeout=seconds):
            raise RegistryUnavailable(f"{self} did not answer: other requests took {seconds:g} s")
        try:
            yield
        finally:
            asking.release()

    def _sent(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        connection = self._connection or self._opened()
        self._connection = connection
        try:
            with _bounded(connection, self.settings.timeout):
                connection.request(method, path, body, self._headers)
                response = connection.getresponse()
                data = response.read(_MOST_BYTES + 1)
        except _Failed:
            self._drop()
            raise
        if len(data) > _MOST_BYTES or response.will_close:
            self._drop()
        return response.status, data

    def _opened(self) -> http.client.HTTPConnection:
        timeout = self.settings.timeout
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_CLIENTS_HERE: weakref.WeakSet[RegistryClient] = weakref.WeakSet()


def _after_fork() -> None:
    global _OPENING  # noqa: PLW0603 - a thread that is not in the child may hold it
    _OPENING = threading.Lock()
    for client in list(_CLIENTS_HERE):
        client.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class _UnusableSchema(UnknownSchema):
    """The registry has the schema, but it cannot be used."""


def _take(room: list[int], level: int) -> None:
    """Take the room of one reference; schemas are compared and compiled as trees, also if they share references."""
    room[0] -= 1
    if room[0] < 0 or level >= _MOST_LEVELS:
        raise _UnusableSchema(
            f"a schema with too many references: more than {_MOST_REFERENCES}, or more than {_MOST_LEVELS} levels"
        )


def _count(schema: Schema, room: list[int], level: int) -> None:
    for reference in schema.references:
        _take(room, level)
        _count(reference.schema, room, level + 1)


class _Failed(Exception):
    """A request failed; ``is_late``: it took too long."""

    def __init__(self, why: str, *, is_late: bool) -> None:
        super().__init__(why)
        self.is_late = is_late


@contextlib.contextmanager
def _bounded(connection: http.client.HTTPConnection, seconds: float) -> Iterator[None]:
    """End a request that takes longer than this, however it spends the time.

    The timeout of a socket bounds a single wait; a server that sends a byte now and then would never exceed it.
    """
    is_late, is_over = threading.Event(), threading.Event()

    def end() -> None:
        wait = seconds
        while not is_over.wait(wait):  # again and again: the connection may have no socket yet, and TLS replaces it
            is_late.set()
            wait = _END_SECONDS
            sock = connection.sock
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=end, daemon=True).start()
    try:
        yield
    except TimeoutError:
        raise _Failed(f"no answer within {seconds:g} s", is_late=True) from None
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: the socket was closed meanwhile
        if not is_late.is_set():
            why = masked(str(error)) if isinstance(error, OSError) else ""
            raise _Failed(why or type(error).__name__, is_late=False) from None
    finally:
        is_over.set()
    if is_late.is_set():  # an answer that ends too early does not always raise
        raise _Failed(f"no answer within {seconds:g} s", is_late=True)


def _context(settings: RegistrySettings) -> ssl.SSLContext:
    reading = f"ca {settings.ca!r}"
    try:
        context = ssl.create_default_context(cafile=settings.ca)
        if settings.certificate is not None:
            reading = f"certificate {settings.certificate!r}"
            reading += f" with key {settings.key!r}" if settings.key is not None else ""
            reading += " and no key_password" if settings.key_password is None else ""
            # Without a password, OpenSSL would ask the terminal for the one of an encrypted key, and wait.
            context.load_cert_chain(settings.certificate, settings.key, lambda: settings.key_password or "")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        raise ConfigurationError(f"registry: {reading} cannot be read: {why or type(error).__name__}") from None
    return context


def _whole(answer: Any, name: str) -> int:
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, int):
        raise RegistryUnavailable(f"the schema registry gave an answer without {name!r}")
    return found


def _line(answer: Any) -> str:
    """Return the first line of an error message of the registry."""
    text = masked(str(answer.get("message", "")).strip())
    return text.splitlines()[0][:300] if text else "no reason given"
