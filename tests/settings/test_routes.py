"""Routes of sinks in the settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidegate import ConfigurationError, Table
from tidegate.app.app import configured
from tidegate.app.listener import SinkListener
from tidegate.settings import Settings, held_settings
from tidegate.tables import Part, Route

PAGE = Path(__file__).parents[2] / "docs" / "routes.md"
BLOCKS = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
EXAMPLES = [each for each in BLOCKS if each.startswith("[sink.")]  # the others are of pipelines
ROUTES = {
    "shop": Route(Part(Table("{topic}", key="id", mode="upsert", create=True))),
    "events": Route(
        [
            Part(Table("orders", key="id", mode="upsert"), where={"headers.type": ["order", "reorder"]}),
            Part(
                Table("refunds"),
                where={"headers.type": "refund", "value.final": True},
                columns={"order_id": "value.order.id", "amount": "value.amount", "at": "timestamp"},
            ),
        ],
        unmatched="ignore",
    ),
    "orders": Route(
        [
            Part(
                Table("orders", key="id", mode="upsert"),
                columns={"id": "value.id", "customer": "value.customer"},
            ),
            Part(
                Table("order_lines", key=["order_id", "line"], mode="upsert"),
                each="value.lines",
                columns={"order_id": "value.id", "line": "index", "sku": "each.sku", "price": "each.price.amount"},
            ),
        ]
    ),
}


def load(path: Path, text: str, **environ: str) -> Settings:
    file = path / "tidegate.toml"
    file.write_text(text)
    return Settings.load(file, environ)


def test_the_examples_of_the_page_are_the_routes_that_it_shows_in_python(tmp_path: Path) -> None:
    ledger = f"[ledger]\nurl = 'sqlite:///{tmp_path}/a.db'\n[kafka]\nbootstrap = 'nowhere.invalid:9092'\n"
    app = configured(load(tmp_path, ledger + "".join(EXAMPLES)))
    found = {each.spec.group: each.sink.into for each in app.listeners if isinstance(each, SinkListener)}
    assert found == ROUTES


def test_a_route_is_shown_with_its_parts(tmp_path: Path) -> None:
    load(tmp_path, EXAMPLES[1])
    held = {each.key: each.value for each in held_settings(tmp_path / "tidegate.toml", {})}
    assert held["sink.events.route.unmatched"] == "ignore"
    assert held["sink.events.route.parts.orders.where.headers.type"] == ["order", "reorder"]


ROUTE = "[sink.a]\ntopics = 'a'\ngroup = 'a'\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'into' is missing, the table; or 'route', for several tables"),
        ("[sink.a.route]\nlower = true", "'parts' is missing"),
        ("[sink.a.route.parts.x]\nkey = ['id']", "'table' is missing"),
        ("[sink.a.route.parts.x]\ntable = 'x'\n[sink.a.into]\ntable = 'y'", "contradict each other"),
        ("[sink.a.route]\nmost_tables = 0\n[sink.a.route.parts.x]\ntable = 'x'", "most_tables: expected a whole"),
        ("[sink.a.route]\nunmatched = 'park'\n[sink.a.route.parts.x]\ntable = 'x'", "unmatched: expected one of"),
        ("[sink.a.route.parts.x]\ntable = '{headers.t}'", "could be that of any table"),
        ("[sink.a.route.parts.x]\ntable = 'x'\nwhere = {'value.a' = 1.5}", "where.value.a: expected text"),
        ("[sink.a.route.parts.x]\ntable = 'x'\nwhere = {'offset' = 1}", "not possible here"),
        ("[sink.a.route.parts.x]\ntable = 'x'\n[sink.a.route.parts.y]\ntable = 'x'", "in two parts of the route"),
        ("[sink.a.route.parts.x]\ntable = 'x'\nwhat = 1", "there is no such setting"),
    ],
)
def test_what_is_wrong_with_a_route_is_told(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        load(tmp_path, ROUTE + text)


def test_a_route_needs_a_group(tmp_path: Path) -> None:
    text = f"[ledger]\nurl = 'sqlite:///{tmp_path}/a.db'\n[kafka]\nbootstrap = 'x:1'\n[sink.a]\ntopics = 'a'\n"
    with pytest.raises(ConfigurationError, match="give it one with group"):
        configured(load(tmp_path, text + "[sink.a.route.parts.x]\ntable = '{topic}'"))
