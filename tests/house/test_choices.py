"""Closed choices are matched to their end: what is not known is an error, and never the last of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from .sources import Source, python_files, read

CLASSES = {"Fail", "Skip", "DeadLetter", "Retry", "Earliest", "Latest", "Timestamp"}
"""The choices that are classes; all others are enums."""
NO_PROMISES = {"TypeName"}  # what is true of few types is said of those, and the rest have it in common


@cache
def choices() -> set[str]:
    """The names of every closed choice."""
    trees = (read(path).tree for path in python_files("src"))
    classes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    is_enum = {"Enum", "StrEnum", "IntEnum"}
    enums = {
        node.name for node in classes if is_enum.intersection(ast.unparse(base).split(".")[-1] for base in node.bases)
    }
    return CLASSES | enums - NO_PROMISES


def test_the_enums_are_found() -> None:
    assert {"Delivery", "GroupProtocol", "OnError", "Outcome", "Mode"} <= choices()


def named(pattern: ast.pattern) -> Iterator[str]:
    """The classes whose members or values a pattern is about."""
    match pattern:
        case ast.MatchOr(patterns):
            for each in patterns:
                yield from named(each)
        case ast.MatchValue(ast.Attribute(ast.Name(name))) | ast.MatchClass(ast.Name(name)):
            yield name


def is_open(statement: ast.Match) -> bool:
    """Whether something that is not known could pass."""
    *cases, last = statement.cases
    if not all(choices().intersection(named(case.pattern)) for case in cases):
        return False
    return "assert_never(" not in ast.unparse(last) and not isinstance(last.body[-1], ast.Raise)


def open_choices(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Match) and is_open(node):
            yield f"{source.module}:{node.lineno}: end it with assert_never"


def test_a_choice_is_matched_to_its_end() -> None:
    found = [each for path in python_files("src") for each in open_choices(read(path))]
    assert not found, "\n".join(found)


def test_the_check_sees_a_choice_that_is_left_open() -> None:
    open_one = "match a:\n    case Delivery.EXACTLY_ONCE:\n        f()\n    case _:\n        g()"
    closed = open_one + "\n    case other:\n        assert_never(other)"
    closed = closed.replace("    case _:\n        g()\n", "")
    assert [
        is_open(node) for text in (open_one, closed) for node in ast.parse(text).body if isinstance(node, ast.Match)
    ] == [
        True,
        False,
    ]
