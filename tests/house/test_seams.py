"""Seams: code that is given a store of positions or a handler does not ask which one it is, and extras are optional."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

from .sources import Source, python_files, read

SEAMS = {"ledger", "_ledger", "store", "_store", "handler", "_handler"}
CONSUMERS = ("src/tidegate/app", "src/tidegate/kafka")
ARGUMENTS = {"tidegate.app.app"}
"""Where a user passes a ledger, or the address of one."""


def breaches(source: Source) -> Iterator[str]:
    """Where a seam is untyped, or told apart by its class."""
    for node in ast.walk(source.tree):
        match node:
            case (
                ast.arg(arg=name, annotation=ast.Name("Any"))
                | ast.AnnAssign(target=ast.Name(name) | ast.Attribute(attr=name), annotation=ast.Name("Any"))
            ) if name in SEAMS:
                yield f"{source.module}:{node.lineno}: {name} is Any; name its protocol"
            case ast.Call(
                func=ast.Name("isinstance" | "getattr"), args=[ast.Name(name) | ast.Attribute(attr=name), *_]
            ) if name in SEAMS and source.module not in ARGUMENTS:
                yield f"{source.module}:{node.lineno}: {name} is told apart by what it is; give the protocol a method"


def test_no_seam_is_untyped_or_told_apart() -> None:
    found = [each for path in python_files(*CONSUMERS) for each in breaches(read(path))]
    assert not found, "\n".join(found)


def test_a_breach_is_reported() -> None:
    bad = (
        "def f(ledger: Any): ...",
        "self._ledger: Any = given",
        "isinstance(self._ledger, Ledger)",
        "getattr(handler, 'passing', None)",
    )
    assert all(list(breaches(Source("tidegate.app.member", text))) for text in bad)
    good = "def f(ledger: PositionStore[Any]):\n    isinstance(record, Record)"
    assert not list(breaches(Source("tidegate.app.member", good)))


def test_listeners_and_sinks_are_imported_without_extras() -> None:
    missing = "import sys; sys.modules.update(dict.fromkeys(('pyarrow', 'pyspark', 'redis')))"
    subprocess.run([sys.executable, "-c", f"{missing}; import tidegate.app.app"], check=True, timeout=60)
