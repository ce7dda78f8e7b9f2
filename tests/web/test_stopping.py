"""The dashboard stops when it is told to, whoever is looking."""

from __future__ import annotations

import http.client
import signal

import pytest

from tidegate.errors import ConfigurationError
from tidegate.web.application import Dashboard
from tidegate.web.security import Token

from .conftest import Place
from .served import SECONDS, Served


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_while_a_stream_is_open(place: Place, number: signal.Signals) -> None:
    started = Served.start(place.folder, "--no-kafka", TIDEGATE_LEDGER=place.url)
    try:
        stream = http.client.HTTPConnection(started.host, timeout=SECONDS)
        stream.request("GET", "/events/overview", headers={"Cookie": started.log_in()})
        response = stream.getresponse()
        assert response.status == 200
        while b"event: page" not in response.readline():
            pass
        assert started.stop(number) == 0
        response.read()  # the stream has an end
        stream.close()
        told = started.log
        assert "Traceback" not in told
        assert started.token not in told
    finally:
        started.close()


def test_a_port_that_is_taken_is_said_in_one_line(place: Place, read_only: Served) -> None:
    port = int(read_only.host.rpartition(":")[2])
    with pytest.raises(ConfigurationError, match=f"the dashboard cannot listen at 127.0.0.1, port {port}: "):
        Dashboard(place.ledger, None, ledger_name="", token=Token(), port=port)
