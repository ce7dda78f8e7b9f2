"""The command."""

from __future__ import annotations

import json as text_of
import os
from typing import Annotated

import typer

from tidegate.cli.codes import ExitCode
from tidegate.cli.connecting import Config, Debug, Json
from tidegate.cli.doctor.examination import examine
from tidegate.cli.failures import reported
from tidegate.cli.payload import harmless
from tidegate.cli.root import app
from tidegate.core.findings import Finding, Verdict

__all__ = ["doctor"]

_Target = Annotated[
    str | None,
    typer.Argument(metavar="[MODULE:APP]", help="The app, such as shop:app; without it what the settings name."),
]
_Spark = Annotated[bool, typer.Option("--spark", help="A pipeline is to run here: Java and PySpark have to be there.")]


@app.command("doctor")
def doctor(
    target: _Target = None,
    *,
    spark: _Spark = False,
    json: Json = False,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Look whether what is set up here can work, and say what to do where it cannot. Nothing is changed."""
    with reported(debug=debug):
        if config is not None:
            os.environ["TIDEGATE_CONFIG"] = str(config.resolve())
        found = []
        for finding in examine(target, config, spark=spark):
            found.append(finding)
            if not json:
                typer.echo(_lines(finding))
        counts = {verdict.value: sum(each.verdict is verdict for each in found) for verdict in Verdict}
        if json:
            typer.echo(text_of.dumps({"findings": [each._asdict() for each in found], "counts": counts}, indent=2))
        else:
            typer.echo(", ".join(f"{count} {name}" for name, count in counts.items()))
        raise typer.Exit(ExitCode.FAILED if counts[Verdict.FAULT] else ExitCode.OK)


def _lines(finding: Finding) -> str:
    line = f"{finding.verdict.value:<8} {finding.check:<10} {harmless(finding.said)}"
    return line if finding.advice is None else f"{line}\n{'':<20}→ {harmless(finding.advice)}"
