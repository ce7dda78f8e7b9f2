"""``tidegate topics``: what Kafka knows of topics."""

from __future__ import annotations

import typer

from tidegate.cli.connecting import Config, Debug, Json, Kafka, cluster
from tidegate.cli.failures import reported
from tidegate.cli.names import Topic
from tidegate.cli.output import Column, document, said, table
from tidegate.cli.root import app
from tidegate.core.errors import ConfigurationError

__all__ = ["describe_topic", "list_topics", "topics"]

topics = typer.Typer(no_args_is_help=True, help="Topics: their partitions, replicas and settings.")
app.add_typer(topics, name="topics")

_LISTING = (
    Column("topic"),
    Column("partitions", is_number=True),
    Column("replicas", is_number=True),
    Column("out of sync", is_number=True),
)
_PARTITION = (
    Column("partition", is_number=True),
    Column("leader", is_number=True),
    Column("replicas"),
    Column("in sync"),
    Column("log begin", is_number=True),
    Column("log end", is_number=True),
)


@topics.command("list")
def list_topics(*, json: Json = False, kafka: Kafka = None, config: Config = None, debug: Debug = False) -> None:
    """List the topics of the cluster, without its own."""
    with reported(debug=debug):
        found = cluster(kafka, config).topics()
        if json:
            document({"topics": found})
        else:
            table(_LISTING, found)


@topics.command("describe")
def describe_topic(
    topic: Topic, *, json: Json = False, kafka: Kafka = None, config: Config = None, debug: Debug = False
) -> None:
    """Show the partitions of a topic, where their logs begin and end, and its settings.

    Example: tidegate topics describe orders
    """
    with reported(debug=debug):
        found = cluster(kafka, config).topic(topic)
        if found is None:
            raise ConfigurationError(f"there is no topic {topic}; create it, or mind its name")
        if json:
            document(found)
            return
        said(f"{found.topic}: id {found.topic_id}, {len(found.partitions)} partitions")
        for setting, value in found.settings.items():
            said(f"  {setting} = {value}")
        table(_PARTITION, found.partitions)
