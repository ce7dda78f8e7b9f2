"""A listener: what is bound to topics, and how it is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

from tidegate.app.binding import Binding, bind
from tidegate.app.commit import Handle
from tidegate.app.computing import Computing
from tidegate.app.handling import Handling, OnRetry, tell_nobody
from tidegate.app.pooling import Pooling
from tidegate.app.returning import refuse_to_return, returns_records
from tidegate.app.sink import Sink
from tidegate.app.spec import ListenerSpec
from tidegate.core.delivery import Delivery
from tidegate.core.errors import ConfigurationError
from tidegate.core.recovery import DeadLetter, Fail, Retry
from tidegate.ledger import Ledger

__all__ = ["Listener"]


@dataclass(frozen=True)
class Listener:
    """A function with its settings; or a sink, which has none."""

    spec: ListenerSpec
    does: Handling | Pooling | Sink
    function: Callable[..., Any] | None = None

    @classmethod
    def of(cls, function: Callable[..., Any], decoder: Any, spec: ListenerSpec, *, has_ledger: bool) -> Listener:
        """A function bound to topics; raises :class:`ConfigurationError` for what cannot be."""
        bound = bind(function, decoder)
        if returns_records(function):
            refuse_to_return(bound.name, function, spec, has_ledger=has_ledger)
        elif not has_ledger and spec.delivery is Delivery.EXACTLY_ONCE:
            raise ConfigurationError(
                "exactly-once needs a ledger: Kafka's own offsets and a database cannot commit together. Give the app "
                "a ledger, or ask for delivery=Delivery.AT_LEAST_ONCE or AT_MOST_ONCE. From topic to topic it needs "
                "none: let the function return the records, annotated as -> Outgoing or -> list[Outgoing]"
            )
        if not has_ledger:
            _refuse_without_ledger(spec, bound)
        handling = Handling(bound, spec.on_error)
        return cls(spec, handling if spec.workers is None else Pooling(handling), function)

    @classmethod
    def into(cls, sink: Sink, spec: ListenerSpec, *, ledger: Ledger[Any] | None) -> Listener:
        """A sink bound to topics."""
        if spec.workers is not None:
            raise ConfigurationError(f"the sink into {sink.into} has no function that a pool of workers could run")
        sink.refuse_elsewhere(ledger)
        return cls(spec, sink)

    def handle(self, ledger: Ledger[Any] | None, on_retry: OnRetry) -> Handle:
        """What is done with the records of a transaction."""
        if isinstance(self.does, Sink):
            return partial(self.does.open(ledger, self.spec.group, self.spec.on_error).prepare, on_retry=on_retry)
        handling = self.does.handling if isinstance(self.does, Pooling) else self.does
        return partial(handling.prepare, on_retry=on_retry)

    def strict(self, ledger: Ledger[Any]) -> Handle:
        """The same for records that are replayed, one by one: what fails raises :class:`HandlerFailed`, at once,
        whatever ``on_error`` says. A pool's function is run here, by whoever prepares."""
        match self.does:
            case Sink():
                return partial(self.does.open(ledger, self.spec.group, Fail()).prepare, on_retry=tell_nobody)
            case Pooling():
                return partial(self.does.strict, self.spec.group)
            case Handling():
                return partial(Handling(self.does.binding, Fail()).prepare, on_retry=tell_nobody)
            case other:
                assert_never(other)

    def computing(self, on_retry: OnRetry) -> Computing | None:
        """The pool of one member, if it has one."""
        return self.does.open(self.spec, on_retry) if isinstance(self.does, Pooling) else None


def _refuse_without_ledger(spec: ListenerSpec, bound: Binding) -> None:
    """Kafka's own offsets can hold positions, and nothing else."""
    if bound.wants_transaction:
        raise ConfigurationError(f"{bound.name} asks for a transaction, and without a ledger there is none")
    if spec.workers is not None and spec.delivery is Delivery.AT_MOST_ONCE:
        raise ConfigurationError(
            f"{bound.name}: a pool runs the function before the position moves, and AT_MOST_ONCE is to move it first. "
            "Leave workers out, or ask for AT_LEAST_ONCE"
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
