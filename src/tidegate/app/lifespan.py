"""Lifespan: what an app has while it runs, the event loop of its coroutines and the resources of its handlers."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar, get_args, get_origin, get_type_hints

from tidegate.core.records import Record
from tidegate.errors import ConfigurationError, ListenerStopped
from tidegate.ledger.transaction import Transaction

__all__ = ["Lifespan", "Resource"]

T = TypeVar("T")

_log = logging.getLogger("tidegate")
_LEAVE = 10.0  # seconds that coroutines have to end after they were cancelled
_YIELDS = (Iterator, Generator, AsyncIterator, AsyncGenerator)
_USE = (
    "a resource is a generator function without parameters that yields once, such as "
    "'async def client() -> AsyncIterator[Client]'"
)


class Resource(Generic[T]):
    """A value that handlers share, which a generator function opens before the first record and closes at the end."""

    def __init__(self, function: Callable[[], Iterator[T] | AsyncIterator[T]]) -> None:
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self.kind = _kind(self.name, function)
        self._function: Any = function
        self._opened: Any = None
        self._value: T | None = None

    @property
    def value(self) -> Any:
        """The value; raises if the app does not run."""
        if self._opened is None:
            raise ListenerStopped(f"resource {self.name} is not open: the app does not run")
        return self._value

    async def open(self) -> None:
        """Run the function up to its ``yield``."""
        opened = self._function()
        try:
            self._value = await anext(opened) if hasattr(opened, "__anext__") else next(opened)
        except (StopIteration, StopAsyncIteration):
            raise ConfigurationError(f"resource {self.name} yields nothing; {_USE}") from None
        self._opened = opened

    async def close(self) -> None:
        """Run the function to its end. An error is logged, because other resources have to be closed too."""
        opened, self._opened, self._value = self._opened, None, None
        try:
            await anext(opened) if hasattr(opened, "__anext__") else next(opened)
        except (StopIteration, StopAsyncIteration):
            return
        except Exception:
            _log.exception("resource %s could not be closed", self.name)
            return
        _log.error("resource %s yields twice; what follows its second yield does not run", self.name)


class Lifespan:
    """The event loop and the resources of an app. They are there from the first use to the last.

    The loop runs on a thread of its own, or is the one that :meth:`adopt` was given. A test kit runs an app several
    times at once; these runs share one lifespan.
    """

    def __init__(self) -> None:
        self.resources: dict[type, Resource[Any]] = {}
        self._lock = threading.Lock()
        self._users = 0
        self._adopted: asyncio.AbstractEventLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._opened: list[Resource[Any]] = []

    def add(self, resource: Resource[Any]) -> None:
        """Add a resource; raises :class:`ConfigurationError` if there is one of its type."""
        if (other := self.resources.setdefault(resource.kind, resource)) is not resource:
            raise ConfigurationError(
                f"resource {resource.name}: {other.name} yields {resource.kind.__name__} already, and handlers name "
                "resources by their type"
            )

    def adopt(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Use a running loop instead of a thread from the next start on; ``None`` for a thread again."""
        self._adopted = loop

    def __enter__(self) -> Self:
        """Open the resources, for the first user only."""
        with self._lock:
            if self._users == 0 and self.resources:
                try:
                    for resource in self.resources.values():
                        self.run(resource.open())
                        self._opened.append(resource)
                except BaseException:
                    self._end()
                    raise
            self._users += 1
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel the coroutines, close the resources and end the loop, for the last user only."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._end()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop; its thread starts with the first use."""
        if self._loop is None:
            self._loop = self._adopted or self._started()
        return self._loop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for its result; called on any other thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def soon(self, function: Callable[[], object]) -> None:
        """Call a function in the loop, unless the loop has ended, and its coroutines with it."""
        if (loop := self._loop) is not None:
            with suppress(RuntimeError):  # it was closed meanwhile
                loop.call_soon_threadsafe(function)

    def _started(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="tidegate-loop", daemon=True)
        self._thread.start()
        return loop

    def _end(self) -> None:
        loop, thread = self._loop, self._thread
        opened, self._opened = self._opened, []
        for resource in reversed(opened):
            self.run(resource.close())
        self._loop = self._thread = None
        if loop is None or thread is None:  # there was none, or it is not ours to end
            return
        try:
            asyncio.run_coroutine_threadsafe(_rest(), loop).result(_LEAVE)
        except TimeoutError:
            _log.error("a coroutine did not end within %g s after it was cancelled; it is left behind", _LEAVE)
            loop.call_soon_threadsafe(loop.stop)
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _rest() -> None:
    """End what the coroutines of an app have left in its loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


def _kind(name: str, function: Any) -> type:
    """Return the type that a generator function yields, by its annotation."""
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if not is_generator or inspect.signature(function).parameters:
        raise ConfigurationError(f"cannot use {name}: {_USE}")
    try:
        returned = get_type_hints(function).get("return")
    except Exception as error:
        raise ConfigurationError(
            f"cannot use {name}: its annotation cannot be resolved ({type(error).__name__}); define the class at the "
            "top of the module, and import it outside of 'if TYPE_CHECKING'"
        ) from error
    kind = get_args(returned)[0] if get_origin(returned) in _YIELDS and get_args(returned) else None
    if not isinstance(kind, type) or kind is Any:
        raise ConfigurationError(f"cannot use {name}: its annotation does not say which class it yields; {_USE}")
    if kind is object or issubclass(kind, Record | Transaction):
        raise ConfigurationError(
            f"cannot use {name}: it yields {kind.__name__}, which handlers cannot ask for as a resource"
        )
    return kind
