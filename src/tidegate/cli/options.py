"""The Typer application, the options that commands share, and the functions that open what the options name."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from tidegate.core.masks import has_secret, masked
from tidegate.core.text import harmless
from tidegate.errors import (
    BrokerUnavailable,
    ConfigurationError,
    LedgerUnavailable,
    RegistryUnavailable,
    SendAgain,
    TidegateError,
)

if TYPE_CHECKING:  # every command imports this module: what only some of them need is imported where it is used
    from tidegate.core.positions import GroupState
    from tidegate.kafka.cluster import Survey
    from tidegate.ledger import Ledger

__all__ = [
    "COMMANDS",
    "CommandModule",
    "Config",
    "Debug",
    "ExitCode",
    "Group",
    "Json",
    "Kafka",
    "LedgerUrl",
    "NoKafka",
    "Topic",
    "app",
    "cluster",
    "complete_groups",
    "complete_topics",
    "connection",
    "known_group",
    "opened_ledger",
    "reported",
    "surveyed",
    "with_every_command",
]


class ExitCode(IntEnum):
    """The exit code of a command."""

    OK = 0
    """Stopped by request, or caught up."""

    FAILED = 1
    """A listener cannot continue, or a check found a problem. Look into it before starting again."""

    CONFIGURATION = 2
    """The command line, the settings or the app are wrong. Nothing was started."""

    UNREACHABLE = 3
    """The ledger or Kafka is unreachable. Starting again later may help."""

    INTERRUPTED = 130
    """Stopped at once by a second SIGINT. Work in progress was rolled back."""

    TERMINATED = 143
    """Stopped at once by a second SIGTERM. Work in progress was rolled back."""

    @classmethod
    def of(cls, error: BaseException) -> ExitCode:
        """Return the exit code for a command that ended with this error."""
        match error:
            case ConfigurationError():
                return cls.CONFIGURATION
            case LedgerUnavailable() | BrokerUnavailable() | RegistryUnavailable() | SendAgain():
                return cls.UNREACHABLE
            case KeyboardInterrupt():
                return cls.INTERRUPTED
            case _:
                return cls.FAILED


@contextmanager
def reported(*, debug: bool) -> Iterator[None]:
    """Print an error as one line, and exit with its code."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, typer.Exit):
            raise
        if debug:
            trace = masked("".join(traceback.format_exception(error)))
            sys.stderr.write("\n".join(map(harmless, trace.split("\n"))))
        typer.echo(f"error: {harmless(masked(_line(error)))}", err=True)
        raise typer.Exit(ExitCode.of(error)) from None


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted; {text}" if text else "interrupted"
    if isinstance(error, TidegateError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class CommandModule(NamedTuple):
    """The module of this package that has a command, and the command's line in ``tidegate --help``."""

    module: str
    line: str


COMMANDS = {
    "adopt": CommandModule(
        "adopt", "Take positions over from a consumer group, a checkpoint of Structured Streaming or a Connect sink."
    ),
    "config": CommandModule("doctor", "The settings."),
    "consume": CommandModule(
        "topics", "Print the records of a topic, up to its end or for as long as there are more. No position is kept."
    ),
    "dashboard": CommandModule(
        "dashboard",
        "Serve a web page with lag, throughput, partitions, dead letters and journal, until SIGINT or SIGTERM.",
    ),
    "dead-letters": CommandModule(
        "dead_letters", "Records whose handling failed for good: look at them, try them again."
    ),
    "doctor": CommandModule(
        "doctor", "Check whether the setup can work, and show how to fix what cannot. Changes nothing."
    ),
    "groups": CommandModule("topics", "Consumer groups: their members and assignments."),
    "hand-back": CommandModule(
        "adopt",
        "Give the positions of a group back to a consumer group of Kafka. Without --execute, this is a preview.",
    ),
    "journal": CommandModule(
        "journal",
        "Show what happened to the positions of a group, the newest entries last; with --json one object in each line.",
    ),
    "pause": CommandModule(
        "positions", "Pause a group, for all its consumers and across restarts. Without --execute, this is a preview."
    ),
    "pipeline": CommandModule("pipeline", "Kafka → DataFrame → table, on Spark, as a file describes it."),
    "positions": CommandModule("positions", "List the positions of a group, and move them by hand."),
    "produce": CommandModule(
        "topics", "Send each line of standard input as a record; stop with an error if one is not delivered."
    ),
    "prune": CommandModule("journal", "Delete old entries of the journal. Without --execute, this is a preview."),
    "resume": CommandModule("positions", "Let a paused group continue. Without --execute, this is a preview."),
    "run": CommandModule(
        "run",
        "Run the listeners of an app, or the sinks of tidegate.toml, until SIGTERM or SIGINT, or until all caught up.",
    ),
    "sandbox": CommandModule(
        "sandbox", "Run real servers on their usual ports until Ctrl-C, and name them in tidegate.toml."
    ),
    "status": CommandModule("status", "Show how every group is doing, or one of them, partition by partition."),
    "topics": CommandModule("topics", "Topics: their partitions, replicas and settings."),
    "verify": CommandModule(
        "journal",
        "Check in the journal that nothing was skipped or repeated without an entry; exit code 1 if it was.",
    ),
}
"""The commands, which are imported when they are called: each needs other packages, and some of these are large."""


def _convert_only_text(command: Any, ctx: Any) -> None:
    """Have Typer convert only the values that need it: text for a parameter of another type.

    It converts with Pydantic, and would import that, which takes longer than a short command, for defaults too.
    """
    for parameter in command.get_params(ctx):
        if hasattr(parameter, "type_descriptor") and not isinstance(parameter.process_value, partial):
            parameter.process_value = partial(_processed, parameter, parameter.process_value)
    for each in getattr(command, "commands", {}).values():
        _convert_only_text(each, ctx)


def _processed(parameter: Any, convert: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    if value is None and not parameter.required:
        value = () if parameter.multiple or parameter.nargs == -1 else None
    elif not isinstance(value, (int, float) if parameter.type_descriptor.annotation is not str else str):
        return convert(ctx, value)
    return value if parameter.callback is None else parameter.callback(ctx, parameter, value)


_USAGE: Any = (
    typer.BadParameter.__base__
)  # the error of a wrong command line; where it lives depends on Typer's version


def _usage_line(error: Any) -> int:
    """Print what is wrong with the command line in one line; a command that needs arguments and has none, its help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.ctx.get_help(), err=True)
    else:
        command = "tidegate" if error.ctx is None else error.ctx.command_path
        message = " ".join(error.format_message().split()).rstrip(".")
        see = " See" if message.endswith("?") else "; see"
        typer.echo(f"error: {masked(message[:1].lower() + message[1:])}{see} {command} --help", err=True)
    return ExitCode.CONFIGURATION


class _Commands(TyperGroup):
    """The commands in alphabetical order. One that is not imported yet is listed by its name and line only."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._loaded = dict(self.commands)
        listed = {name: TyperCommand(name, help=command.line) for name, command in COMMANDS.items()}
        self.commands = dict(sorted({**listed, **self._loaded}.items()))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _convert_only_text(self, ctx)
        return super().parse_args(ctx, args)

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run a command. An error in the command line is shown in one line, as every other error."""
        is_alone = settings.get("standalone_mode", True)
        settings["standalone_mode"] = False
        if not is_alone:
            return super().main(*args, **settings)
        try:
            sys.exit(super().main(*args, **settings) or ExitCode.OK)
        except _USAGE as error:
            sys.exit(_usage_line(error))
        except typer.Abort:
            typer.echo("error: interrupted", err=True)
            sys.exit(ExitCode.INTERRUPTED)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name in COMMANDS and name not in self._loaded:
            import_module(f"tidegate.cli.{COMMANDS[name].module}")
            found: Any = typer.main.get_group(app)
            self._loaded |= found._loaded
            self.commands = {**self.commands, **self._loaded}
            _convert_only_text(self.commands[name], ctx)
        return super().resolve_command(ctx, args)


# Typer's own tracebacks show local variables, which may hold passwords.
app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)


def with_every_command() -> typer.Typer:
    """Return the application after importing all its commands, for programs that describe them."""
    for command in COMMANDS.values():
        import_module(f"tidegate.cli.{command.module}")
    return app


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # noqa: PLC0415 - slow

        typer.echo(f"tidegate {version('tidegate')}")
        raise typer.Exit


@app.callback()
def _tidegate(
    *,
    asked: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Kafka records into a database, exactly once."""


Kafka = Annotated[str | None, typer.Option(metavar="ADDRESS", help="A broker. Default: from the settings.")]
NoKafka = Annotated[bool, typer.Option("--no-kafka", help="Ask the ledger alone.")]
Config = Annotated[Path | None, typer.Option(help="The settings file. Default: tidegate.toml here, if it exists.")]
Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def connection(kafka: str | None, config: Path | None) -> dict[str, Any]:
    """Return the librdkafka settings for the chosen cluster; raise if no broker is named."""
    settings = _client_settings(kafka, config)
    if "bootstrap.servers" not in settings:
        raise ConfigurationError("no broker is named; give --kafka host:9092, or set it in tidegate.toml")
    return settings


def cluster(kafka: str | None, config: Path | None) -> Survey:
    """Return the configured cluster; raise if no broker is named."""
    from tidegate.kafka.cluster import Survey  # noqa: PLC0415

    return Survey(connection(kafka, config))


def surveyed(kafka: str | None, config: Path | None, *, no_kafka: bool = False) -> Survey | None:
    """Return the configured cluster; ``None`` if no broker is named or ``no_kafka`` is set."""
    settings = _client_settings(kafka, config)
    if no_kafka or "bootstrap.servers" not in settings:
        return None
    from tidegate.kafka.cluster import Survey  # noqa: PLC0415

    return Survey(settings)


def _client_settings(kafka: str | None, config: Path | None) -> dict[str, Any]:
    from tidegate.settings import Settings  # noqa: PLC0415

    settings = Settings.load(config).kafka.configuration()
    if kafka is not None:
        settings["bootstrap.servers"] = kafka
    return settings


LedgerUrl = Annotated[
    str | None,
    typer.Option("--ledger", metavar="URL", help="The ledger's URL, without a password. Default: from the settings."),
]


def opened_ledger(url: str | None, config: Path | None) -> Ledger[Any]:
    """Open the chosen ledger. The caller closes it.

    A URL with a password is refused on the command line, since every user can read a process's arguments.
    """
    from tidegate.ledger.open import open_ledger  # noqa: PLC0415
    from tidegate.settings import Settings  # noqa: PLC0415

    settings = Settings.load(config).ledger
    if url is not None and has_secret(url):
        raise ConfigurationError(
            "--ledger has a password in it, which everybody on this machine could read; put the URL into "
            "TIDEGATE_LEDGER or tidegate.toml"
        )
    where = url or settings.url
    if where is None:
        raise ConfigurationError("no ledger is named; set TIDEGATE_LEDGER, or ledger in tidegate.toml")
    return open_ledger(where, prefix=settings.prefix, limits=settings.limits)


def complete_groups(incomplete: str) -> list[str]:
    """Complete the name of a group from the ledger. Errors give no completions, so they do not disturb the shell."""
    try:
        with opened_ledger(None, None) as ledger:
            return _offered({total.group for total in ledger.totals()}, incomplete)
    except Exception:
        return []


def complete_topics(incomplete: str) -> list[str]:
    """Complete the name of a topic from the cluster. Errors give no completions, so they do not disturb the shell."""
    try:
        survey = surveyed(None, None)
        return [] if survey is None else _offered({each.topic for each in survey.topics()}, incomplete)
    except Exception:
        return []


def _offered(names: set[str], incomplete: str) -> list[str]:
    """Return the names that complete the word; a shell prints them, so none has characters that a terminal obeys."""
    return sorted(name for name in names if name.startswith(incomplete) and name.isprintable())


Group = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.", autocompletion=complete_groups)]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topics)]


def known_group(ledger: Ledger[Any], group: str) -> GroupState:
    """Return the state of a group; raise an error that lists the known groups if the ledger does not have it."""
    state = ledger.read(group)
    if not state.positions and not state.paused:
        names = sorted({total.group for total in ledger.totals()})
        if group not in names:
            there = ", ".join(names[:10]) or "none"
            more = f" and {len(names) - 10} more" if len(names) > 10 else ""
            raise ConfigurationError(f"the ledger has no group {group!r}; it has: {there}{more}")
    return state
