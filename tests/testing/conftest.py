from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.testing.shop import Shop

from tidegate.testing.fixtures import make_kit

__all__ = ["make_kit"]


@pytest.fixture
def new_shop(tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    """Opens shops, each with an empty database, and closes them."""
    shops: list[Shop] = []

    def new(**options: Any) -> Shop:
        shops.append(Shop(f"sqlite:///{tmp_path / f'shop-{len(shops)}.db'}", **options))
        return shops[-1]

    yield new
    for shop in shops:
        shop.close()
