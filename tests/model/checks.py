"""The checks of the model: configurations in ``docs/model``, and what their bounds leave out."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .tlc import text_of


@dataclass(frozen=True)
class Bounded:
    """The actions that are never taken within the bounds of a configuration, and the situations that never arise."""

    not_taken: frozenset[str] = frozenset()
    not_seen: frozenset[str] = frozenset()


_GROWTH = frozenset({"Produce", "AddPartition"})
_EDITS = frozenset({"Edit", "EditLands"})
_EDITED = frozenset(
    {
        "an edit that was carried out, and whose operator tries again",
        "a record that takes effect again, as an operator asked",
        "a record that takes no effect, as an operator asked",
    }
)
_TWO_PARTITIONS = frozenset(
    {
        "a transaction over two partitions",
        "a record in an added partition that nobody has claimed",
        "a partition that has a start and was never claimed",
    }
)
_TWO_RECORDS = frozenset(
    {
        "an open entry that several advances extended",
        "an entry that was closed by its age",
    }
)

SAFETY_CHECKS = {
    "Faults": Bounded(_GROWTH | _EDITS, _EDITED | _TWO_PARTITIONS),
    "Edits": Bounded(_GROWTH, _TWO_PARTITIONS),
    "Growth": Bounded(_EDITS, _EDITED | _TWO_RECORDS),
}
LIVENESS_CHECKS = ("Liveness", "LivenessEdits", "LivenessGrowth")
CHECKS = (*SAFETY_CHECKS, *LIVENESS_CHECKS)
DEEP = "Deep"


def actions() -> frozenset[str]:
    """The actions of the model: the lines of ``Next``."""
    body = re.search(r"^Next ==\n(.*?)\n\n", text_of("Tidegate.tla"), re.MULTILINE | re.DOTALL)
    assert body is not None
    return frozenset(re.findall(r": (\w+)\(", body[1]))


def situations() -> frozenset[str]:
    """The situations that the model has to get into."""
    return frozenset(re.findall(r'^    <<"(.+)",$', text_of("Witnesses.tla"), re.MULTILINE))
