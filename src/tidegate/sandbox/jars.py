"""The jars of the Kafka broker and of the schema registry."""

from __future__ import annotations

from pathlib import Path

from tidegate.java.cache import cache_directory
from tidegate.java.jars import Jars
from tidegate.sandbox.errors import as_sandbox_error
from tidegate.sandbox.workspace import require_space

__all__ = ["KAFKA_VERSION", "REGISTRY_VERSION", "kafka_jars", "registry_jars"]

KAFKA_VERSION = "4.3.1"
REGISTRY_VERSION = "3.0.9"

# Kafka logs through SLF4J 1.7, and its dependencies bring no binding. Without slf4j-simple it would log nothing.
_KAFKA = Jars(
    f"kafka-{KAFKA_VERSION}",
    (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36"),
    needed_by="Kafka 4",
)


_REGISTRY = Jars(
    f"apicurio-registry-{REGISTRY_VERSION}",
    (f"io.apicurio:apicurio-registry-app:{REGISTRY_VERSION}",),
    needed_by="Apicurio Registry",
    archive="all",
)


def kafka_jars() -> Path:
    """Return the directory with the broker's jars. The first call on a machine downloads about 44 MB."""
    return _fetched(_KAFKA)


def registry_jars() -> Path:
    """Return the directory with the registry's jars. The first call on a machine downloads about 109 MB."""
    return _fetched(_REGISTRY)


def _fetched(jars: Jars) -> Path:
    cache = cache_directory()
    if not (cache / jars.folder).is_dir():
        require_space(next(path for path in (cache, *cache.parents) if path.exists()))
    with as_sandbox_error():
        return jars.fetched()
