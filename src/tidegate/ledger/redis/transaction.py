"""The transaction on Redis: it collects commands, which the commit script runs when it moves the positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Self, TypeAlias

from redis import ConnectionPool
from redis.client import Pipeline

from tidegate.core.records import Record
from tidegate.core.work import Work
from tidegate.errors import ConfigurationError
from tidegate.ledger.transaction import Transaction

__all__ = ["Encode", "RedisCommands", "RedisTransaction"]

Encode: TypeAlias = Callable[[Any], bytes]

_MOST_WORDS = 7_000  # Lua passes at most 8,000 values to a function
_NOT_HERE = frozenset(
    ("execute", "multi", "transaction", "pipeline", "pubsub", "monitor", "lock", "client", "register_script")
)
_REFUSED = frozenset(
    (
        *("MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH", "SELECT"),  # they would end or leave the transaction
        *("EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO", "SCRIPT", "FUNCTION"),  # scripts do not nest
        *("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE", "MONITOR"),
        *("FLUSHDB", "FLUSHALL", "SWAPDB"),  # they would delete or replace the ledger
    )
)


class _NoConnections(ConnectionPool):
    def get_connection(self, *_: object, **__: object) -> NoReturn:
        raise ConfigurationError("tx.redis collects commands and asks Redis nothing; to read, use a client of your own")


_NO_CONNECTIONS = _NoConnections()


class RedisCommands(Pipeline):
    """A pipeline that collects commands and never sends them: the commit script of the transaction runs them.

    It has every command of redis-py. Each returns the pipeline, because Redis's answer is not known yet.
    """

    def __init__(self, encode: Encode) -> None:
        super().__init__(_NO_CONNECTIONS, {}, True, None)
        self._encode = encode

    def execute_command(self, *args: Any, **_: Any) -> Self:
        """Collect a command; all command methods of redis-py call this one."""
        return self.collect(args, None)

    def collect(self, command: tuple[Any, ...], record: Record | None) -> Self:
        """Collect a command, and the record to park if the command fails."""
        name = self._encode(command[0]).split() if command else []  # "XGROUP CREATE" are two words
        if not name:
            raise ConfigurationError("a command needs a name, as in tx.execute('INCRBY', 'total', 5)")
        shown = b" ".join(name).decode(errors="replace").upper()
        if shown.split()[0] in _REFUSED:
            raise ConfigurationError(
                f"{shown} cannot be part of a transaction on Redis, which is one script of its own"
            )
        words = [*name, *map(self._encode, command[1:])]
        if len(words) > _MOST_WORDS:
            raise ConfigurationError(
                f"{shown} has {len(words)} words, and a script can pass {_MOST_WORDS} at once; split the command"
            )
        self.command_stack.append((words, record))
        return self

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute, but raise for methods that would talk to Redis at once."""
        if name in _NOT_HERE:
            raise ConfigurationError(f"not tx.redis.{name}(): the commands run together when the transaction commits")
        return super().__getattribute__(name)

    def __exit__(self, *_: object) -> None:
        """Keep the commands: the transaction needs them."""


class RedisTransaction(Transaction):
    """A transaction on Redis. Call the commands that write the data on ``redis``, or pass them to :meth:`execute`.

    Redis does not roll a script back. A command that fails does not affect the others and is parked as a dead letter;
    after the commit, ``failed`` counts such commands.
    """

    def __init__(self, work: Work, encode: Encode, *, advances: bool = False) -> None:
        super().__init__(work, advances=advances)
        self.redis = RedisCommands(encode)
        self.failed = 0

    def execute(self, *command: Any, record: Record | None = None) -> None:
        """Collect a command, as in ``tx.execute("INCRBY", "total", 5, record=record)``.

        ``record`` is parked if the command fails. Without it, the dead letter names the command and the spans.
        """
        self.redis.collect(command, record)

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        collected = len(self.redis.command_stack)
        try:
            yield
        except BaseException:
            del self.redis.command_stack[collected:]
            raise

    @property
    def commands(self) -> list[tuple[list[bytes], Record | None]]:
        """The commands collected so far: the words of each, and its record."""
        return list(self.redis.command_stack)
