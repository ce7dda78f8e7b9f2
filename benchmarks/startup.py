"""How long the command line takes to start, beside the least that such a program can do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.report import Report
from tidegate import TopicPartition, open_ledger
from tidegate.cli.options import COMMANDS

ROUNDS = 15
BAR = 1.5

BARE_TYPER = """
import typer

app = typer.Typer()


def add(name: str) -> None:
    @app.command(name, help="One line about " + name)
    def command(group: str, limit: int = 10, json: bool = False) -> None: ...


for name in {names!r}:
    add(name)
app()
"""

BARE_QUERY = """
from sqlalchemy import create_engine, text

with create_engine({url!r}).connect() as connection:
    for row in connection.execute(text("SELECT * FROM tidegate_positions")):
        print(*row)
"""


def run(report: Report) -> None:
    report.heading("Starting the command line")
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/shop.db"
        with open_ledger(url) as ledger:
            ledger.create()
            for group in ("billing", "mailing"):
                ledger.claim(group, [TopicPartition("orders", number) for number in range(4)], start_at=0)
        typer, query = Path(folder, "bare_typer.py"), Path(folder, "bare_query.py")
        typer.write_text(BARE_TYPER.format(names=list(COMMANDS)))
        query.write_text(BARE_QUERY.format(url=url))
        environment = {**os.environ, "TIDEGATE_LEDGER": url}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or the package would be compiled each time
        beside(report, "`tidegate --help` / a bare Typer program", ["--help"], [str(typer), "--help"], environment)
        beside(report, "`tidegate status` / SQLAlchemy reads the rows", ["status"], [str(query)], environment)


def beside(report: Report, name: str, ours: list[str], bare: list[str], environment: dict[str, str]) -> None:
    """Start both in turns; the shortest of each is the one that was disturbed least."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * ROUNDS + 2):
        is_ours = turn % 2 == 0
        began = time.perf_counter()
        command = ["-m", "tidegate.cli", *ours] if is_ours else bare
        subprocess.run([sys.executable, *command], env=environment, stdout=subprocess.DEVNULL, check=True)
        if turn > 1:  # the first two compile what is not compiled yet
            taken[is_ours].append(time.perf_counter() - began)
    best = {is_ours: min(times) for is_ours, times in taken.items()}
    detail = f"{best[True] * 1000:.0f} and {best[False] * 1000:.0f} ms"
    report.figure(name, best[True] / best[False], "x", at_most=BAR, detail=detail)
