"""The driver, as a program: `tidegate pipeline run FILE`, with a mark in it that a kill can be aimed at.

    python -m demo.driver FILE DELIVERY [COMMITS DESCRIPTOR]

With an aim, it writes a byte to the descriptor after so many micro-batches, just behind the first COMMIT of the last
one, and waits there to be killed. Behind that COMMIT there are data and position, if it is exactly once; the data but
not the position, if it is at least once; the position but not the data, if it is at most once.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tidegate import Delivery
from tidegate.cli import main
from tidegate.ledger import SqlLedger


class Aim:
    """Counts the COMMITs that come first in a micro-batch, and stops at the last one."""

    def __init__(self, commits: int, descriptor: int) -> None:
        self._left = commits
        self._descriptor = descriptor

    def committed(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.write(self._descriptor, b"!")
            threading.Event().wait()

    def install(self, delivery: Delivery) -> None:
        """Be told by the ledger of this process."""
        if delivery is Delivery.AT_LEAST_ONCE:
            self._after_the_data()
        else:
            self._after_the_position()

    def _after_the_data(self) -> None:
        detached = SqlLedger.detached

        @contextmanager
        def told(ledger: SqlLedger, *arguments: Any, **named: Any) -> Iterator[Any]:
            with detached(ledger, *arguments, **named) as tx:
                yield tx
            self.committed()

        SqlLedger.detached = told  # type: ignore[method-assign, assignment]

    def _after_the_position(self) -> None:
        transact = SqlLedger.transact

        def told(ledger: SqlLedger, *arguments: Any, **named: Any) -> Any:
            result = transact(ledger, *arguments, **named)
            self.committed()
            return result

        SqlLedger.transact = told  # type: ignore[method-assign]


def end_with_the_demo() -> None:
    """End at once when nobody holds the other end of standard input any more, wherever this process is."""
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    file, delivery, *aim = sys.argv[1:]
    threading.Thread(target=end_with_the_demo, daemon=True).start()
    if aim:
        Aim(int(aim[0]), int(aim[1])).install(Delivery(delivery))
    sys.argv = ["tidegate", "pipeline", "run", file, "--json"]
    main()
