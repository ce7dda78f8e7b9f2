"""Connections that break at a chosen moment of an operation, and let others act before the operation notices."""

from __future__ import annotations

import contextlib
import select
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from sqlalchemy import make_url

from tidegate.ledger.duckdb import DuckdbLedger
from tidegate.ledger.memory import MemoryLedger
from tidegate.ledger.transaction import ConnectionLost, OutcomeUnknown

_WAIT = 30.0
_LATE = 0.05


class Moment(Enum):
    """When the connection breaks: before the store is given a request, or after it has answered, which is lost; or at
    once, and the store gets the request a while later."""

    BEFORE = "before"
    AFTER = "after"
    LATE = "late"


@dataclass
class Cut:
    """A break under one request of an operation; ``meanwhile`` runs once it has happened and before the operation is
    told. Requests are counted from 1, those that contain ``match``."""

    request: int
    moment: Moment
    meanwhile: Callable[[], object] = lambda: None
    for_good: bool = False
    match: bytes = b""
    seen: int = 0
    fired: bool = False
    error: BaseException | None = field(default=None, repr=False)

    def strikes(self, request: bytes = b"") -> bool:
        """Whether the request that is about to be sent is the one."""
        if self.match not in request:
            return False
        self.seen += 1
        return not self.fired and self.seen == self.request

    def fire(self) -> None:
        """Let the others act."""
        self.fired = True
        try:
            self.meanwhile()
        except BaseException as error:
            self.error = error


class Line(Protocol):
    """What lies between a ledger and its store."""

    cut: Cut | None


class Wire:
    """A proxy before a real server, which breaks the connection under the request that ``cut`` says. After a break for
    good, clients are let in and cut off, until it is mended."""

    def __init__(self, host: str, port: int) -> None:
        self.cut: Cut | None = None
        self._target = (host, port)
        self._away = False
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, url: str) -> str:
        """The URL of the server, through this proxy. TLS is off: its packets are not the requests, and differ in number
        from one connection to the next."""
        through = make_url(url).set(port=self.port)
        if through.drivername.endswith("+pymysql"):
            through = through.update_query_dict({"ssl_disabled": "true"})
        return through.render_as_string(hide_password=False)

    def close(self) -> None:
        """Take no more connections; those that there are end with their clients."""
        self._listener.close()

    def mend(self) -> None:
        """Break nothing more, and let clients in again. A break that is still on its way comes to nothing."""
        with self._lock:
            self.cut, self._away = None, False

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            if self._away:
                return
            with socket.create_connection(self._target) as server:
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    each.settimeout(_WAIT)
                self._relay(client, server)

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        while True:
            ready, _, _ = select.select([client, server], [], [])
            for one in ready:
                data = one.recv(1 << 16)
                if not data:
                    return
                if one is server:
                    client.sendall(data)
                elif (cut := self.cut) is not None and cut.strikes(data):
                    self._break(cut, client, server, data)
                    return
                else:
                    server.sendall(data)

    def _break(self, cut: Cut, client: socket.socket, server: socket.socket, data: bytes) -> None:
        if cut.moment is Moment.LATE:
            cut.fire()
            client.close()
            time.sleep(_LATE)  # long enough for a client that does not wait for the server to try again
        if cut.moment is not Moment.BEFORE:
            server.sendall(data)
            server.recv(1 << 16)  # the answer: it is done, and nobody will hear of it
        server.close()
        with self._lock:
            self._away = cut.for_good and self.cut is cut
        if not cut.fired:
            cut.fire()


class BreakingConnection(sqlite3.Connection):
    """A connection to a file whose COMMIT fails as on a broken disk, with the work done or undone."""

    line: Line

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        """Run a statement, unless it is the COMMIT that is to break."""
        cut = self.line.cut
        if sql != "COMMIT" or cut is None or not cut.strikes():
            return super().execute(sql, *parameters)
        super().execute("COMMIT" if cut.moment is Moment.AFTER else "ROLLBACK")
        cut.fire()
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error


class BreakingDuckdbLedger(DuckdbLedger):
    """A ledger whose COMMIT is not answered, with the work done or undone; others get the writers' lock after that."""

    cut: Cut | None = None
    _broken: Cut | None = None

    @contextmanager
    def _writing(self, begin: Any) -> Iterator[Any]:
        try:
            with super()._writing(begin) as session:
                yield session
        except OutcomeUnknown:
            broken, self._broken = self._broken, None
            if broken is not None:
                broken.fire()
            raise

    def _commit(self, conn: Any) -> None:
        cut = self.cut
        if cut is None or not cut.strikes():
            super()._commit(conn)
            return
        self._broken = cut
        if cut.moment is Moment.AFTER:
            super()._commit(conn)
        raise OutcomeUnknown("as if the disk had failed")


class BreakingMemoryLedger(MemoryLedger):
    """A ledger in this process that is told of a lost connection before or after it has done something."""

    cut: Cut | None = None

    @contextmanager
    def _lock(self) -> Iterator[None]:
        cut = self.cut if self.cut is not None and self.cut.strikes() else None
        if cut is not None and cut.moment is Moment.BEFORE:
            cut.fire()
            raise ConnectionLost("the request was lost")
        with super()._lock():
            yield
        if cut is not None:
            cut.fire()
            raise OutcomeUnknown("the answer was lost")
