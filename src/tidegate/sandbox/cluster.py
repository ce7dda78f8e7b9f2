"""A Kafka cluster of several brokers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from tidegate.sandbox.errors import SandboxError
from tidegate.sandbox.handshake import brokers_known_to
from tidegate.sandbox.kafka import FAST_START, Kafka, new_cluster_id
from tidegate.sandbox.ports import free_port
from tidegate.sandbox.server import Setting
from tidegate.sandbox.several import Several


class KafkaCluster(Several):
    """A quorum of Kafka nodes, each a broker and a controller, that can be killed, paused and restarted one by one.

    The cluster serves requests only while a majority of the nodes runs.
    """

    def __init__(
        self, brokers: int = 3, *, settings: Mapping[str, Setting] | None = None, jvm: Sequence[str] = FAST_START
    ) -> None:
        if brokers < 1:
            raise SandboxError(f"A cluster needs at least one broker, not {brokers}.")
        self._size = brokers
        # On a small machine three brokers slow each other down. A longer timeout than for one keeps healthy ones from
        # being declared dead.
        self._settings: dict[str, Setting] = {"broker.session.timeout.ms": 6000, **(settings or {})}
        self._jvm = tuple(jvm)
        self._cluster_id = new_cluster_id()
        self._nodes: tuple[Kafka, ...] = ()

    @property
    def nodes(self) -> tuple[Kafka, ...]:
        """The brokers, numbered from 1; empty before the start."""
        return self._nodes

    @property
    def cluster_id(self) -> str:
        """The id that the cluster was formatted with."""
        return self._cluster_id

    @property
    def bootstrap(self) -> str:
        """The value of ``bootstrap.servers`` for clients."""
        return ",".join(node.bootstrap for node in self._nodes)

    def stop(self) -> None:
        """End all nodes and remove their directories.

        They are killed, because a node that shuts down gracefully waits for the majority, which is shutting down too.
        """
        for node in self._nodes:
            node.kill()
        for node in self._nodes:
            node.stop()
        self._nodes = ()

    @property
    def _has_started(self) -> bool:
        return bool(self._nodes)

    def _start(self, timeout: float | None) -> None:
        self._nodes = self._make_nodes()
        self._start_nodes(Kafka.start_timeout if timeout is None else timeout)

    def _make_nodes(self) -> tuple[Kafka, ...]:
        voters = {node: free_port() for node in range(1, self._size + 1)}
        return tuple(
            Kafka(
                node_id=node,
                port=free_port(),
                cluster_id=self._cluster_id,
                voters=voters,
                settings=self._settings,
                jvm=self._jvm,
            )
            for node in voters
        )

    def _start_nodes(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with ThreadPoolExecutor(self._size) as pool:
            starts = [pool.submit(node.start, timeout) for node in self._nodes]
            done, rest = wait(starts, return_when=FIRST_EXCEPTION)
            if rest:
                for node in self._nodes:
                    node.kill()
            for start in (*done, *rest):
                start.result()
        everyone = frozenset(node.node_id for node in self._nodes)
        for node in self._nodes:
            while brokers_known_to(node.host, node.port).ids != everyone:
                if time.monotonic() > deadline:
                    raise SandboxError(f"Broker {node.node_id} does not know all others.\n{node.log_tail()}")
                time.sleep(0.05)
