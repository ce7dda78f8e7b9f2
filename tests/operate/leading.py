"""Topics whose partitions can be asked about: a new one may lack leaders for a moment."""

from __future__ import annotations

from tests.app.member.stage import Stage, wait_until

from tidegate.operate import Survey


def led_topic(stage: Stage, survey: Survey, partitions: int = 1) -> str:
    topic = stage.topic(partitions)
    wait_for_leaders(survey, topic, partitions)
    return topic


def wait_for_leaders(survey: Survey, topic: str, partitions: int) -> None:
    wait_until(lambda: len(survey.stable_ends([topic])) == partitions, f"leaders for {topic}")
