"""A broker that asks for a password."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tidegate.sandbox import Kafka
from tidegate.sandbox.ports import free_port

PLANTED = "5ecret"
PASSWORD = f'pl"an\\ted-{PLANTED}= ;'


@contextmanager
def broker_with_login() -> Iterator[dict[str, Any]]:
    """A broker that lets in whoever knows the password; the settings of a client that does."""
    port, controllers, login = free_port(), free_port(), free_port()
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    jaas = f'{module} required username="broker" password="b" user_shop="{quoted}";'
    here = "://127.0.0.1:"
    settings = {
        "listeners": f"CLIENT{here}{port},CONTROLLER{here}{controllers},LOGIN{here}{login}",
        "advertised.listeners": f"CLIENT{here}{port},LOGIN{here}{login}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": jaas.replace("\\", "\\\\"),
        "auto.create.topics.enable": True,
    }
    with Kafka(port=port, voters={1: controllers}, settings=settings):
        yield {
            "bootstrap.servers": f"127.0.0.1:{login}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "shop",
            "sasl.password": PASSWORD,
        }
