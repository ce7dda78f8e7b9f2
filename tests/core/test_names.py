"""What may be called what."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.records import GROUP_BYTES, TOPIC_LENGTH, check_group, check_topic
from tidegate.errors import InvalidName


@given(st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=TOPIC_LENGTH))
def test_every_name_that_kafka_allows_is_a_topic(name: str) -> None:
    if name not in {".", ".."}:
        assert check_topic(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "a\n", "a`", "x" * (TOPIC_LENGTH + 1)])
def test_a_name_that_kafka_refuses_is_not_a_topic(name: str) -> None:
    with pytest.raises(InvalidName, match="topic"):
        check_topic(name)


@given(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=60).filter(
        str.strip
    )
)
def test_a_group_may_be_called_anything_that_fits_but_white_space(name: str) -> None:
    assert check_group(name) == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "empty"),
        (" \r", "empty"),
        ("a\0b", "NUL"),
        ("\ud800", "Unicode"),
        ("é" * (GROUP_BYTES // 2 + 1), "256 bytes"),
    ],
)
def test_a_group_name_that_cannot_be_stored_is_refused_with_the_reason(name: str, said: str) -> None:
    with pytest.raises(InvalidName, match=said):
        check_group(name)
