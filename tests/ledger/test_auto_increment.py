"""A deadlock over AUTO_INCREMENT numbers, which MariaDB reports as if there were no more of them."""

from __future__ import annotations

import secrets
import threading
import time
from typing import Any

from sqlalchemy import create_engine, text

from tidegate import Span, TopicPartition, open_ledger
from tidegate.ledger import Outcome
from tidegate.sandbox import MariaDB

ORDERS = TopicPartition("orders", 0)
WAITING = text("SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'")


def test_a_deadlock_over_numbers_is_a_conflict_and_is_tried_again(mariadb: MariaDB) -> None:
    """The other transaction holds the table's AUTO-INC lock while it waits for a row of ours."""
    name, engine = f"numbers_{secrets.token_hex(4)}", create_engine(mariadb.url)
    with engine.begin() as conn:
        conn.execute(text(f"CREATE TABLE {name} (id BIGINT AUTO_INCREMENT PRIMARY KEY, k INT UNIQUE)"))
        conn.execute(text(f"CREATE TABLE {name}_more (k INT PRIMARY KEY)"))
    insert = f"INSERT INTO {name} (k) SELECT :first UNION SELECT :second"

    def stranger() -> None:
        with engine.connect() as conn:
            # Of two transactions in a deadlock, the server ends the one that has changed less: ours.
            conn.execute(text(f"INSERT INTO {name}_more SELECT seq FROM seq_1_to_5000"))
            conn.execute(text(insert), {"first": 5, "second": 1})
            conn.rollback()

    in_the_way = threading.Thread(target=stranger)

    def handler(tx: Any) -> None:
        tx.execute(text(insert), {"first": 1, "second": 2})
        if in_the_way.ident is None:
            in_the_way.start()
            with engine.connect() as conn:
                while not conn.execute(WAITING).scalar():
                    assert in_the_way.is_alive(), "it did not come to wait for a lock"
                    conn.rollback()
                    time.sleep(0.2)  # InnoDB reads this table anew only if it was not asked for 0.1 s
            tx.execute(text(insert), {"first": 7, "second": 8})

    with open_ledger(mariadb.url, prefix=f"{name}_") as ledger:
        claims = ledger.claim("billing", [ORDERS])
        result = ledger.transact(claims, [Span(ORDERS, 0, 1, 1)], handler)
        assert (result.outcome, result.conflicts) == (Outcome.COMMITTED, 1)
        assert ledger.verify("billing").ok
    in_the_way.join()
    with engine.connect() as conn:
        assert sorted(conn.execute(text(f"SELECT k FROM {name}")).scalars()) == [1, 2]
    engine.dispose()
