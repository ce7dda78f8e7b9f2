"""The process that Python workers are forked from, with what their tasks need loaded already.

Spark's own loads nothing, so that every new worker would spend a second or two on imports. See
``spark.python.daemon.module``.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module

from pyspark.daemon import manager

import tidegate.spark.executing
import tidegate.spark.staging  # noqa: F401

for optional in ("psycopg", "pymysql", "pandas"):
    with suppress(ImportError):
        import_module(optional)

if __name__ == "__main__":
    gc.freeze()  # what is there now is shared by all workers for as long as nobody touches it
    manager()  # type: ignore[no-untyped-call]
