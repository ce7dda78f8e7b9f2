"""From the bytes of records to columns, on a real broker and each database."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from tests.app.sink.shop import TOPIC, Shop

from tidegate import ConfigurationError, Record
from tidegate.tables import CsvFormat


def test_json_goes_into_columns_of_the_same_names(busy_shop: Shop) -> None:
    busy_shop.create("id INTEGER NOT NULL, total DECIMAL(12,2), note VARCHAR(40)")
    busy_shop.send(b'{"id": 1, "total": 9.90, "note": "a\\tb\\\\c"}', b'{"note": null, "id": 2, "more": [1]}')
    busy_shop.sink()
    assert [(i, t and Decimal(str(t)), n) for i, t, n in busy_shop.rows()] == [
        (1, Decimal("9.9"), "a\tb\\c"),
        (2, None, None),
    ]


def test_lines_of_csv_go_into_columns(busy_shop: Shop) -> None:
    busy_shop.create("id INTEGER NOT NULL, note VARCHAR(40)")
    busy_shop.send("id;note", '1;"a;b"', "2;NULL", "three;c", partition=1)
    busy_shop.sink(format=CsvFormat(["id", "note"], delimiter=";", header=True, nulls="NULL"))
    assert busy_shop.rows() == [(1, "a;b"), (2, None)]
    ((offset, error),) = busy_shop.letters()
    assert offset == 3
    assert "column 'id'" in error


def test_a_function_makes_rows_of_a_record(busy_shop: Shop) -> None:
    def lines(record: Record) -> Any:
        order = json.loads(record.value or b"")
        return [{"order_id": order["id"], "item": item} for item in order["items"]]

    busy_shop.create("order_id INTEGER NOT NULL, item VARCHAR(40)")
    busy_shop.send({"id": 1, "items": ["a", "b"]}, {"id": 2, "items": []}, {"id": 3}, partition=0)
    busy_shop.sink(format=lines)
    assert busy_shop.rows(order="1, 2") == [(1, "a"), (1, "b")]
    assert [offset for offset, _ in busy_shop.letters()] == [2]


def test_columns_are_mapped_to_fields_and_to_what_kafka_knows(busy_shop: Shop) -> None:
    busy_shop.send(
        {"address": {"city": "Ulm"}, "id": 7},
        key="ann",
        partition=1,
        headers={"trace": b"t1", "other": b"\xff"},
        timestamp=1_767_225_600_123,
    )
    busy_shop.send({"id": 8}, partition=1, timestamp=1_767_225_600_456)  # nothing of what is optional
    columns = {
        "id": "value.id",
        "city": "value.address.city",
        "customer": "key",
        "trace": "headers.trace",
        "all_headers": "headers",
        "topic_name": "topic",
        "part": "partition",
        "place": "offset",
        "made": "timestamp",
    }
    busy_shop.sink(into={"create": True, "columns": {"id": int, "city": str}}, columns=columns)
    first, second = busy_shop.rows("id, city, customer, trace, topic_name, part, place")
    assert first == (7, "Ulm", "ann", "t1", TOPIC, 1, 0)
    assert second == (8, None, None, None, TOPIC, 1, 1)
    ((made,), _) = busy_shop.rows("made")
    moment = datetime.fromisoformat(made) if isinstance(made, str) else made
    assert moment.replace(tzinfo=None) == datetime(2026, 1, 1, 0, 0, 0, 123_000)
    (_, headers), (_, none) = busy_shop.rows("place, all_headers")
    pairs = json.loads(headers) if isinstance(headers, str) else headers
    assert sorted(pairs, key=lambda pair: str(pair[0])) == [["other", {"base64": "/w=="}], ["trace", "t1"]]
    assert none in (None, [], "[]")


def test_what_can_never_work_is_refused_before_the_first_record(shop: Shop) -> None:
    shop.create("id INTEGER NOT NULL, note VARCHAR(9)")
    for said, into, settings in [
        ("has no column 'nowhere'", {}, {"columns": {"nowhere": "value.id"}}),
        ("cannot come from 'valeu.id'", {}, {"columns": {"id": "valeu.id"}}),
        ("format: expected 'json', .*, not 'xml'", {}, {"format": "xml"}),
        ("id may not identify a row", {"key": "id", "mode": "upsert"}, {}),
        ("needs a value in every row", {}, {"columns": {"note": "value.note"}}),
    ]:
        with pytest.raises(ConfigurationError, match=said):
            shop.sink(into=into, **settings)
