"""A member that runs the code of an older version: told what to do line by line, it says what came of it.

It has to be understood by that version, so it uses no more than its ledger.
"""

from __future__ import annotations

import sys
from functools import partial

from sqlalchemy import text

from tidegate import Span, TopicPartition, open_ledger


def main(url: str, prefix: str) -> None:
    ledger = open_ledger(url, prefix=prefix)
    partition = TopicPartition("orders", 0)
    claims = {}
    table = prefix.strip("{}:_") + "_done"

    def write(offset, tx):
        if hasattr(tx, "redis"):
            tx.redis.rpush(prefix + "done", offset)
        else:
            tx.execute(text(f"INSERT INTO {table} VALUES (:o)"), {"o": offset})

    for line in sys.stdin:
        what, _, argument = line.strip().partition(" ")
        try:
            if what == "claim":
                claims = ledger.claim("billing", [partition], 0, deployment=argument or None)
                answer = claims[partition].position
            elif what == "advance":
                at = int(argument)
                ledger.transact(claims, [Span(partition, at, at + 1, 1)], partial(write, at))
                answer = "done"
            elif what == "reclaim":
                claims = ledger.reclaim(claims).claims
                answer = claims[partition].position if claims else "taken"
            else:
                answer = sorted(map(str, ledger.release(claims)))
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(answer, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
