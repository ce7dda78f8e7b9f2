from __future__ import annotations

import gc

from tidegate.kafka.consumer import no_collection


def test_the_collector_is_put_off_and_comes_back_also_after_an_error() -> None:
    try:
        with no_collection():
            assert not gc.isenabled()
            raise LookupError
    except LookupError:
        pass
    assert gc.isenabled()


def test_a_collector_that_somebody_has_switched_off_stays_off() -> None:
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
