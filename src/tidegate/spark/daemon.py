"""The daemon that Spark forks Python workers from, with the modules that tasks need already imported.

Spark's own daemon imports nothing, so every new worker would spend a second or two on imports. Spark starts this one
because of the setting ``spark.python.daemon.module``.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module

from pyspark.daemon import manager

import tidegate.spark.executor
import tidegate.spark.staging  # noqa: F401

for optional in ("psycopg", "pymysql", "pandas"):
    with suppress(ImportError):
        import_module(optional)

if __name__ == "__main__":
    gc.freeze()  # workers share the memory of existing objects as long as they do not write to it
    manager()  # type: ignore[no-untyped-call]
