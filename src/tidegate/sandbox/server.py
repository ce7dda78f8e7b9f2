"""The base class of the sandbox's servers: how they start, stop, freeze and restart."""

from __future__ import annotations

import signal
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NoReturn, Self

from tidegate.sandbox.account import Account
from tidegate.sandbox.errors import PortTakenError, SandboxError
from tidegate.sandbox.lifetime import Lifetime
from tidegate.sandbox.ports import LOOPBACK, free_port, is_free, listener_on
from tidegate.sandbox.process import Command, Process
from tidegate.sandbox.workspace import Workspace, require_space

Setting = str | int | float | bool
"""A value in a server's configuration. Booleans are written in the server's own syntax."""

PROBE_SECONDS = 1.0
"""Timeout of one readiness check. The check is repeated until the server is ready or the start times out."""

_PORT_ATTEMPTS = 5
_PROBE_INTERVAL = 0.02
_TAIL_LINES = 30


class Server(Lifetime):
    """A real server as a child process, on a loopback port, with its own directory.

    Without ``directory`` it uses a temporary one, which :meth:`stop` removes unless ``keep`` is set. With ``directory``
    the data stays, and a later server of the same kind continues with it. ``settings`` are added to the server's
    configuration and override those of the sandbox.
    """

    title: ClassVar[str]
    """The server's name in messages."""
    accounts: ClassVar[tuple[str, ...]] = ()
    """System users to run as when this process is root; empty for a server that may run as root."""
    start_timeout: ClassVar[float] = 60.0
    stop_timeout: ClassVar[float] = 20.0
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(
        self,
        *,
        port: int | None = None,
        directory: str | Path | None = None,
        keep: bool = False,
        settings: Mapping[str, Setting] | None = None,
    ) -> None:
        self.host = LOOPBACK
        self._chosen_port = port
        self._port = port
        self._given_directory = None if directory is None else Path(directory)
        self._keep = keep
        self.settings: Mapping[str, Setting] = dict(settings or {})
        self._workspace: Workspace | None = None
        self._process: Process | None = None
        self._paused = False

    @property
    def port(self) -> int:
        """The port for clients; it stays the same when the server is restarted."""
        if self._port is None:
            self._port = free_port()
        return self._port

    @property
    def directory(self) -> Path:
        """The directory with data, configuration and log."""
        return self._space.path

    @property
    def log_path(self) -> Path:
        """The file with all output of the server."""
        return self._space.log

    @property
    def running(self) -> bool:
        """Whether the server's process exists, even if it is paused."""
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int | None:
        """Process id of the server, or None when it is not running."""
        return None if self._process is None else self._process.pid

    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        """Return the last lines of the log, with secrets masked."""
        if self._workspace is None or not self._workspace.log.exists():
            return ""
        text = "\n".join(self._workspace.log.read_text(errors="replace").splitlines()[-lines:])
        for secret in self._secrets():
            text = text.replace(secret, "***")
        return text

    def start(self, timeout: float | None = None) -> Self:
        """Start the server, on its existing data or else on new data, and return when clients can use it.

        ``timeout`` does not include a download.
        """
        if self.running:
            return self
        self._check()
        deadline = time.monotonic() + (self.start_timeout if timeout is None else timeout)
        comes_back = self._workspace is not None
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                self._start(deadline)
                return self
            except PortTakenError:
                if comes_back or self._chosen_port is not None or attempt == _PORT_ATTEMPTS:
                    self._clean_up(comes_back)
                    raise
                self._forget_ports()
            except BaseException:
                self._clean_up(comes_back)
                raise
        raise AssertionError("unreachable")

    def stop(self, timeout: float | None = None) -> None:
        """Stop the server gracefully, or by force when that takes too long, and remove its temporary directory."""
        try:
            self._end(self.stop_timeout if timeout is None else timeout)
        finally:
            self._close()

    def kill(self) -> None:
        """Kill the server with all its descendant processes (SIGKILL). The data stays until :meth:`stop`."""
        if self._process is not None:
            self._process.kill()
        self._paused = False

    def pause(self) -> None:
        """Freeze the server and all its descendant processes (SIGSTOP)."""
        self._running_process.signal(signal.SIGSTOP, everyone=True)
        self._paused = True

    def resume(self) -> None:
        """Let a paused server continue (SIGCONT)."""
        self._running_process.signal(signal.SIGCONT, everyone=True)
        self._paused = False

    def restart(self, timeout: float | None = None) -> Self:
        """Start the server again on the same data and port; stop it gracefully first if it is running."""
        self._end(self.stop_timeout)
        return self.start(timeout)

    def __repr__(self) -> str:
        state = "paused" if self._paused else "running" if self.running else "stopped"
        return f"<{type(self).__name__} {self.host}:{self._port} {state}>"

    @abstractmethod
    def _check(self) -> None:
        """Download what the server needs; raise if a program is not installed."""

    def _adopt(self, workspace: Workspace) -> None:
        """Take over what an earlier server left in the directory, such as its password."""

    @abstractmethod
    def _initialise(self) -> None:
        """Create the data of a new server. Called once."""

    @abstractmethod
    def _command(self) -> Command:
        """Write the configuration, and return the command that starts the server."""

    @abstractmethod
    def _ready(self) -> bool:
        """Return whether clients can use the server. May raise ``OSError`` if they cannot."""

    def _ports(self) -> Sequence[int]:
        return (self.port,)

    def _forget_ports(self) -> None:
        self._port = None

    def _secrets(self) -> Sequence[str]:
        return ()

    @property
    def _space(self) -> Workspace:
        if self._workspace is None:
            raise SandboxError(f"{self.title} has no directory: it was not started, or it was stopped.")
        return self._workspace

    @property
    def _running_process(self) -> Process:
        if self._process is None or not self._process.running:
            raise SandboxError(f"{self.title} is not running.")
        return self._process

    def _start(self, deadline: float) -> None:
        workspace, process = self._open()
        if not workspace.initialised:
            self._initialise()
            workspace.mark_initialised()
        self._require_ports()
        process.launch(self._command())
        while True:
            if self._probe():
                return
            if not process.running:
                self._explain_death(process)
            if time.monotonic() > deadline:
                raise SandboxError(f"{self.title} was not ready in time.{self._told()}")
            time.sleep(_PROBE_INTERVAL)

    def _probe(self) -> bool:
        try:
            # The process is checked last: the answer may have come from another server on that port.
            return self._ready() and self.running
        except OSError:
            return False

    def _open(self) -> tuple[Workspace, Process]:
        if self._workspace is None:
            account = Account.to_drop_to(self.accounts)
            kind = type(self).__name__.lower()
            if self._given_directory is not None:
                self._workspace = Workspace.at(self._given_directory, kind, account)
            else:
                self._workspace = Workspace.temporary_for(kind, account, keep=self._keep)
        if self._process is None:
            self._process = Process(self._workspace)
            self._adopt(self._workspace)
        require_space(self._workspace.path)
        return self._workspace, self._process

    def _run(self, command: Command) -> None:
        """Run one command of the preparation; raise if it fails."""
        status = self._process.run(command, self.start_timeout) if self._process else None
        if status != 0:
            name = Path(command.argv[0]).name
            raise SandboxError(
                f"{self.title} could not be prepared: {name} ended with {status}.{self._told(2 * _TAIL_LINES)}"
            )

    def _require_ports(self) -> None:
        for port in self._ports():
            if not is_free(port):
                raise PortTakenError(
                    f"{self.title} could not start: {self.host}:{port} is taken by {listener_on(port)}. "
                    "End that process, or choose another port."
                )

    def _explain_death(self, process: Process) -> NoReturn:
        self._require_ports()  # another process may have taken the port
        raise SandboxError(f"{self.title} died while starting (status {process.wait(0)}).{self._told()}")

    def _told(self, lines: int = _TAIL_LINES) -> str:
        tail = self.log_tail(lines)
        return f" The end of its log:\n{tail}" if tail else " Its log is empty."

    def _end(self, timeout: float) -> None:
        process = self._process
        if process is None or not process.running:
            return
        if self._paused:
            self.resume()
        process.signal(self.stop_signal)
        if process.wait(timeout) is None:
            process.kill()

    def _clean_up(self, comes_back: bool) -> None:
        """Clean up after a failed start: keep only data that existed before."""
        if comes_back:
            self.kill()
        else:
            self._close()

    def _close(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process = None
        self._workspace = None
        self._paused = False
