"""The traps fit what they are put around: the long run that uses them comes much later."""

import inspect

from tests.chaos.spark import faulty

from tidegate.ledger.ledger import deliver
from tidegate.spark import staging


def test_the_faulty_load_takes_what_a_load_takes() -> None:
    assert inspect.signature(faulty.FaultyLoad._load) == inspect.signature(staging._Load._load)


def test_the_faulty_delivery_takes_what_a_delivery_takes() -> None:
    genuine = list(inspect.signature(deliver).parameters.values())
    given = list(inspect.signature(faulty.deliver).parameters.values())
    together = [each.name for each in given if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert together == [each.name for each in genuine if each.kind is each.POSITIONAL_OR_KEYWORD]
