"""A table as the settings describe it."""

from __future__ import annotations

from tidegate.settings.sinks import IntoSettings
from tidegate.tables.table import Table

__all__ = ["table_of"]


def table_of(into: IntoSettings) -> Table:
    """The table of an ``[into]`` section: a sink's or a pipeline's."""
    return Table(
        into.table,
        key=into.key,
        mode=into.mode.value,
        create=into.create,
        evolve=into.evolve,
        columns=into.types,
        add=into.add,
        delete=into.delete,
        schema=into.schema,
    )
