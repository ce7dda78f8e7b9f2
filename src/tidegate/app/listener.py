"""Listeners: a function, a function or coroutine in a pool, or a sink that is bound to topics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.app.binding import Binding, bind
from tidegate.app.handler import FunctionHandler, Handler, OnRetry, ignore_retry
from tidegate.app.lifespan import Lifespan
from tidegate.app.pool import PoolQueue
from tidegate.app.pool_handler import PoolHandler
from tidegate.app.schema_decoder import SchemaDecoder
from tidegate.app.sink import Sink
from tidegate.app.spec import ListenerSpec, refuse_to_return, returns_records
from tidegate.core.policies import DeadLetter, Delivery, Fail, FailurePolicy, Retry
from tidegate.errors import ConfigurationError
from tidegate.ledger import Ledger, Transaction

__all__ = ["FunctionListener", "Listener", "PoolListener", "SinkListener"]

_FIRST = 4


@dataclass(frozen=True, kw_only=True)
class Listener(ABC):
    """What handles the records of topics, with its settings. Each kind of listener has a subclass.

    ``function`` is the user's function; ``None`` for a sink.
    """

    spec: ListenerSpec
    function: Callable[..., Any] | None = None

    @staticmethod
    def of(
        function: Callable[..., Any],
        decoder: Any,
        spec: ListenerSpec,
        *,
        ledger: Ledger[Any] | None,
        lifespan: Lifespan,
    ) -> Listener:
        """Bind a function to topics; raises :class:`ConfigurationError` if its signature or settings forbid it.

        ``lifespan`` has the event loop for coroutines and the resources for parameters.
        """
        bound, has_ledger = bind(function, decoder, resources=lifespan.resources), ledger is not None
        returns = returns_records(function)
        if returns:
            refuse_to_return(bound.name, function, spec, has_ledger=has_ledger, is_async=bound.is_async)
        elif not has_ledger and spec.delivery is Delivery.EXACTLY_ONCE:
            raise ConfigurationError(
                "exactly-once needs a ledger: Kafka's own offsets and a database cannot commit together. Give the app "
                "a ledger, or ask for delivery=Delivery.AT_LEAST_ONCE or AT_MOST_ONCE. From topic to topic it needs "
                "none: let the function return the records, annotated as -> Outgoing or -> list[Outgoing]"
            )
        if ledger is None:
            _refuse_without_ledger(spec, bound)
        else:
            _refuse_other_transaction(ledger, bound)
        _refuse_other_settings(spec, bound)
        is_pooled = bound.is_async or spec.workers is not None
        if is_pooled and isinstance(decoder, SchemaDecoder):
            raise ConfigurationError(
                f"cannot bind {bound.name}: in a pool, values that name a schema are not decoded yet; make it a plain "
                "'def' without workers, and run several processes"
            )
        if is_pooled:
            return PoolListener(spec=spec, function=function, binding=bound, lifespan=lifespan)
        is_apart = not (bound.wants_transaction or returns)
        return FunctionListener(spec=spec, function=function, binding=bound, is_apart=is_apart)

    @staticmethod
    def into(sink: Sink, spec: ListenerSpec, *, ledger: Ledger[Any] | None) -> Listener:
        """Bind a sink to topics; raises :class:`ConfigurationError` if the ledger is not in a SQL database."""
        if spec.workers is not None:
            raise ConfigurationError(f"the sink into {sink.into} has no function that a pool of workers could run")
        if spec.concurrency is not None or spec.timeout is not None:
            raise ConfigurationError(f"the sink into {sink.into} has no coroutine: leave concurrency and timeout out")
        sink.refuse_elsewhere(ledger)
        return SinkListener(spec=spec, sink=sink)

    @property
    @abstractmethod
    def name(self) -> str:
        """What the records go to, for messages: the function, or the table."""

    @property
    def first_portion(self) -> int | None:
        """The number of records in the first transaction, when their duration is not known; ``None`` is no limit.

        A function that takes single records needs no limit, because it can be stopped between two of them. It cannot if
        delivery is at most once, where the position has moved already.
        """
        return _FIRST if self.spec.delivery is Delivery.AT_MOST_ONCE else None

    def handler(self, ledger: Ledger[Any] | None, on_retry: OnRetry) -> Handler:
        """Return the handler of one member."""
        return self._handler(ledger, self.spec.on_error, on_retry)

    def strict(self, ledger: Ledger[Any]) -> Handler:
        """Return a handler for replays: the first failure raises :class:`HandlerFailed`, despite ``on_error``."""
        return self._handler(ledger, Fail(), ignore_retry)

    def computing(self, on_retry: OnRetry) -> PoolQueue | None:
        """Create the pool of one member; ``None`` if the listener has no workers."""
        return None

    @abstractmethod
    def _handler(self, ledger: Ledger[Any] | None, policy: FailurePolicy, on_retry: OnRetry) -> Handler:
        """Return a handler with this policy."""


@dataclass(frozen=True, kw_only=True)
class FunctionListener(Listener):
    """A listener whose function runs in the transaction, or apart from it if it takes none and returns no records."""

    binding: Binding
    is_apart: bool

    @property
    def name(self) -> str:
        """The function's name."""
        return self.binding.name

    @property
    def first_portion(self) -> int | None:
        """The number of records in the first transaction, as for any listener; a batch cannot be stopped half way."""
        return _FIRST if self.binding.is_batch else super().first_portion

    def _handler(self, ledger: Ledger[Any] | None, policy: FailurePolicy, on_retry: OnRetry) -> Handler:
        return FunctionHandler(self.binding, policy, on_retry=on_retry, is_apart=self.is_apart)


@dataclass(frozen=True, kw_only=True)
class PoolListener(Listener):
    """A listener whose function computes in threads or coroutines; the transaction writes the results."""

    binding: Binding
    lifespan: Lifespan

    @property
    def name(self) -> str:
        """The function's name."""
        return self.binding.name

    def __post_init__(self) -> None:
        if self.binding.is_async and self.binding.wants_transaction:
            raise ConfigurationError(
                f"cannot bind {self.binding.name}: it is 'async def' and takes a transaction, whose row locks would be "
                "held while it waits. Leave the transaction out and return what to write; it is written in the "
                "transaction that moves the position"
            )
        if self.binding.is_async and self.binding.is_batch:
            raise ConfigurationError(
                f"cannot bind {self.binding.name}: it is 'async def', which is awaited for many records at once. Let "
                "it take one record or its value"
            )
        if self.binding.wants_transaction or self.binding.is_batch:
            raise ConfigurationError(
                f"cannot bind {self.binding.name}: with workers=… it computes outside of the transaction, many "
                "records at once. Let it take one record or its value, and return what to write"
            )

    def strict(self, ledger: Ledger[Any]) -> Handler:
        """Return a handler for replays, which computes the records while it prepares them."""
        return self._pool_handler(Fail(), ignore_retry, is_alone=True)

    def computing(self, on_retry: OnRetry) -> PoolQueue:
        """Create the pool of one member."""
        return self._pool_handler(self.spec.on_error, on_retry).queue(self.spec)

    def _handler(self, ledger: Ledger[Any] | None, policy: FailurePolicy, on_retry: OnRetry) -> Handler:
        return self._pool_handler(policy, on_retry)

    def _pool_handler(self, policy: FailurePolicy, on_retry: OnRetry, *, is_alone: bool = False) -> PoolHandler:
        spec = self.spec
        return PoolHandler(
            self.binding,
            policy,
            spec.group,
            on_retry,
            is_alone=is_alone,
            lifespan=self.lifespan,
            timeout=spec.timeout,
        )


@dataclass(frozen=True, kw_only=True)
class SinkListener(Listener):
    """A listener that writes records into a table, without a function."""

    sink: Sink

    @property
    def name(self) -> str:
        """The table's name."""
        return f"table {self.sink.into}"

    def strict(self, ledger: Ledger[Any]) -> Handler:
        """Return a handler for replays, which does not wait for missing parents either."""
        return self.sink.open(ledger, self.spec.group, Fail(), waits=False)

    def _handler(self, ledger: Ledger[Any] | None, policy: FailurePolicy, on_retry: OnRetry) -> Handler:
        return self.sink.open(ledger, self.spec.group, policy, on_retry)


def _refuse_other_transaction(ledger: Ledger[Any], bound: Binding) -> None:
    """Raise if the function is annotated with the transaction of another kind of store."""
    wanted, given = bound.transaction, ledger.transaction_class
    if wanted is not None and given is not Transaction and not issubclass(given, wanted):
        raise ConfigurationError(
            f"cannot bind {bound.name}: it takes a {wanted.__name__}, and the transactions of {ledger} are a "
            f"{given.__name__}; annotate it with that, or with Transaction"
        )


def _refuse_other_settings(spec: ListenerSpec, bound: Binding) -> None:
    """Raise if a setting is for another kind of function."""
    if bound.is_async and spec.workers is not None:
        raise ConfigurationError(
            f"cannot bind {bound.name}: it is 'async def', and workers are threads; say concurrency={spec.workers} "
            "instead"
        )
    if not bound.is_async and (spec.concurrency is not None or spec.timeout is not None):
        named = "concurrency" if spec.concurrency is not None else "timeout"
        raise ConfigurationError(
            f"cannot bind {bound.name}: {named} is for coroutines; make it 'async def', or use workers for a pool of "
            "threads"
        )


def _refuse_without_ledger(spec: ListenerSpec, bound: Binding) -> None:
    """Raise if the listener needs a ledger: Kafka's own offsets can store positions, and nothing else."""
    if bound.wants_transaction:
        raise ConfigurationError(f"{bound.name} asks for a transaction, and without a ledger there is none")
    if (spec.workers is not None or bound.is_async) and spec.delivery is Delivery.AT_MOST_ONCE:
        raise ConfigurationError(
            f"{bound.name}: AT_MOST_ONCE moves the position first, but a pool runs the function before that. Make it a "
            "plain 'def' without workers, or use AT_LEAST_ONCE"
        )
    if spec.start.deployment is not None:
        raise ConfigurationError(
            f"{bound.name}: the names of deployments are kept in the ledger, and the app has none; leave deployment out"
        )
    policy = spec.on_error
    while isinstance(policy, Retry):
        policy = policy.then
    if isinstance(policy, DeadLetter):
        raise ConfigurationError(f"{bound.name}: dead letters are kept in the ledger, and the app has none")
