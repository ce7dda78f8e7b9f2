"""Links between tables: foreign keys, and what else makes a row of one table change another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Links", "TableId", "ordered"]

TableId: TypeAlias = "tuple[str | None, str]"
"""A table's schema and name, as the database spells them."""


@dataclass(frozen=True)
class Links:
    """What one table has to do with others."""

    table: TableId
    parents: frozenset[TableId] = frozenset()
    """The tables that its foreign keys refer to."""
    children: frozenset[TableId] = frozenset()
    """The tables whose foreign keys refer to it."""
    acts: bool = False
    """Whether writing to it may change rows of other tables: by CASCADE and the like, a trigger, or a rule."""


def ordered(links: Mapping[TableId, Links], tables: Iterable[TableId]) -> Sequence[TableId] | None:
    """Return the tables with parents before children, and otherwise in their order; ``None`` if there is a cycle.

    A parent may be one through tables that are not among these.
    """
    wanted = list(tables)
    above = {table: _above(links, table) for table in wanted}
    found: list[TableId] = []
    left = wanted
    while left:
        free = [table for table in left if not any(other in above[table] for other in left if other != table)]
        if not free:
            return None
        found += free
        left = [table for table in left if table not in free]
    return found


def _above(links: Mapping[TableId, Links], table: TableId) -> set[TableId]:
    """Return the parents of a table, and theirs."""
    seen: set[TableId] = set()
    pending = [table]
    while pending:
        known = links.get(pending.pop())
        new = (known.parents if known else frozenset()) - seen
        seen |= new
        pending += new
    return seen
