"""``tidegate pause`` and ``tidegate resume``: a whole group, over restarts."""

from __future__ import annotations

from tidegate.cli.changing import Execute, Force, Reason, User, login, show_pause
from tidegate.cli.connecting import Config, Debug, Json
from tidegate.cli.failures import reported
from tidegate.cli.names import Group
from tidegate.cli.opening import LedgerUrl, opened_ledger
from tidegate.cli.output import document
from tidegate.cli.root import app
from tidegate.operate import Operator, PausePreview, plain

__all__ = ["pause", "resume"]


@app.command("pause")
def pause(
    group: Group,
    *,
    force: Force = False,
    execute: Execute = False,
    reason: Reason = None,
    user: User = None,
    json: Json = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Pause a group, for all its consumers and over restarts; a preview, unless --execute is given.

    Example: tidegate pause billing --execute --reason "the bank is closed"
    """
    with reported(debug=debug), opened_ledger(ledger, config) as store:
        operator = Operator(store, None)
        _carry_out(operator, operator.pause(group, force=force), json=json, execute=execute, user=user, reason=reason)


@app.command("resume")
def resume(
    group: Group,
    *,
    execute: Execute = False,
    reason: Reason = None,
    user: User = None,
    json: Json = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Let a paused group go on; a preview, unless --execute is given.

    Example: tidegate resume billing --execute
    """
    with reported(debug=debug), opened_ledger(ledger, config) as store:
        operator = Operator(store, None)
        _carry_out(operator, operator.resume(group), json=json, execute=execute, user=user, reason=reason)


def _carry_out(
    operator: Operator, preview: PausePreview, *, json: bool, execute: bool, user: str | None, reason: str | None
) -> None:
    executed = execute and operator.set_paused(preview, user=login(user), reason=reason)
    if json:
        document({"executed": executed, **plain(preview)})
    else:
        show_pause(preview, executed=executed)
