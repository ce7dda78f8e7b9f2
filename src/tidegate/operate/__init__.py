"""Operating: how groups are doing, and changes to them, for the command line and the page alike."""

from __future__ import annotations

from tidegate.core.verdicts import State
from tidegate.kafka.survey import Survey
from tidegate.operate.errors import ChangeRefused, PositionsMoved
from tidegate.operate.figures import GroupStatus, GroupSummary, PartitionStatus, Summaries
from tidegate.operate.operator import Operator
from tidegate.operate.overview import Overview
from tidegate.operate.plain import plain
from tidegate.operate.preview import Action, EditPreview, PausePreview, Shift
from tidegate.operate.target import By, Target, To, target

__all__ = [
    "Action",
    "By",
    "ChangeRefused",
    "EditPreview",
    "GroupStatus",
    "GroupSummary",
    "Operator",
    "Overview",
    "PartitionStatus",
    "PausePreview",
    "PositionsMoved",
    "Shift",
    "State",
    "Summaries",
    "Survey",
    "Target",
    "To",
    "plain",
    "target",
]
