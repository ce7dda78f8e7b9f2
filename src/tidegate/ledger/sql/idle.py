"""Connections that sat in the pool for long are looked at before they are used: the server may have ended them."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import DisconnectionError

__all__ = ["revive_idle"]

_IDLE_SINCE = "tidegate_idle_since"


def revive_idle(engine: Engine, after: float) -> None:
    """Have the pool replace a dead connection that was idle for more than ``after`` seconds.

    A connection in use costs nothing by this, where SQLAlchemy's ``pool_pre_ping`` asks the server at every checkout.
    """

    def checked_in(_: Any, record: Any) -> None:
        record.info[_IDLE_SINCE] = time.monotonic()

    def checked_out(connection: Any, record: Any, _: Any) -> None:
        since = record.info.get(_IDLE_SINCE)
        if since is None or time.monotonic() - since < after:
            return
        try:
            alive = engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error:
            alive = False
        if not alive:
            raise DisconnectionError("the server ended the connection while it was idle")

    event.listen(engine, "checkin", checked_in)
    event.listen(engine, "checkout", checked_out)
