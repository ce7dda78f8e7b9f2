"""Operations: the status of groups and changes to them, for both the command line and the web page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tidegate.kafka.cluster import Survey
    from tidegate.operate.adopt import Adoption, AdoptPreview, HandBack, HandBackPreview, InDoubt, KafkaGroup
    from tidegate.operate.checkpoint import Checkpoint
    from tidegate.operate.edits import Action, By, EditPreview, Operator, PausePreview, Shift, Target, To, target
    from tidegate.operate.states import State
    from tidegate.operate.status import GroupStatus, GroupSummary, Overview, PartitionStatus, Summaries, plain
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "kafka.cluster": ("Survey",),
            "operate.adopt": (
                "AdoptPreview",
                "Adoption",
                "HandBack",
                "HandBackPreview",
                "InDoubt",
                "KafkaGroup",
            ),
            "operate.checkpoint": ("Checkpoint",),
            "operate.edits": (
                "Action",
                "By",
                "EditPreview",
                "Operator",
                "PausePreview",
                "Shift",
                "Target",
                "To",
                "target",
            ),
            "operate.states": ("State",),
            "operate.status": ("GroupStatus", "GroupSummary", "Overview", "PartitionStatus", "Summaries", "plain"),
        },
    )

__all__ = [
    "Action",
    "AdoptPreview",
    "Adoption",
    "By",
    "Checkpoint",
    "EditPreview",
    "GroupStatus",
    "GroupSummary",
    "HandBack",
    "HandBackPreview",
    "InDoubt",
    "KafkaGroup",
    "Operator",
    "Overview",
    "PartitionStatus",
    "PausePreview",
    "Shift",
    "State",
    "Summaries",
    "Survey",
    "Target",
    "To",
    "plain",
    "target",
]
