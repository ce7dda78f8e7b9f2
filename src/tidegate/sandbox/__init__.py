"""Real servers as child processes, for the demo and the tests.

Each server has its own directory and a free loopback port, and ends with the process that started it.
"""

from __future__ import annotations

from tidegate.sandbox.cluster import KafkaCluster
from tidegate.sandbox.database import Database
from tidegate.sandbox.debezium import Debezium
from tidegate.sandbox.errors import SandboxError
from tidegate.sandbox.executor import Executor
from tidegate.sandbox.kafka import Kafka
from tidegate.sandbox.mariadb import MariaDB
from tidegate.sandbox.mysql import MySQL
from tidegate.sandbox.pgbouncer import PgBouncer
from tidegate.sandbox.postgres import Postgres
from tidegate.sandbox.proxy import Proxy
from tidegate.sandbox.redis import Redis
from tidegate.sandbox.registry import Registry
from tidegate.sandbox.server import Server
from tidegate.sandbox.spark import SparkCluster
from tidegate.sandbox.spark_nodes import SparkMaster, SparkWorker
from tidegate.sandbox.trap import Trap

__all__ = [
    "Database",
    "Debezium",
    "Executor",
    "Kafka",
    "KafkaCluster",
    "MariaDB",
    "MySQL",
    "PgBouncer",
    "Postgres",
    "Proxy",
    "Redis",
    "Registry",
    "SandboxError",
    "Server",
    "SparkCluster",
    "SparkMaster",
    "SparkWorker",
    "Trap",
]
