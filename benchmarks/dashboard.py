"""The dashboard over a ledger that has grown: how long a page takes."""

from __future__ import annotations

import http.client
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlencode, urlsplit

from benchmarks.grown import BUSY, GROUPS, PARTITIONS, grown
from benchmarks.operating import best
from benchmarks.report import Report

PAGES = {
    "all groups": "/",
    "groups that are searched for": "/?q=group-07&sort=lag",
    "one group": f"/group?name={BUSY}",
    "the journal": f"/journal?group={BUSY}",
    "the journal, verified": f"/journal?group={BUSY}&verify=1",
}


def run(report: Report) -> None:
    report.heading(f"Dashboard: {GROUPS:,} groups of {PARTITIONS} partitions")
    with grown() as (ledgers, bootstrap):
        for name, url in ledgers.items():
            with dashboard(url, bootstrap) as visitor:
                report.figure(f"{name}: all groups, first of all", best(lambda: visitor.get("/"), 1), "s", at_most=1.0)
                for what, path in PAGES.items():
                    taken = best(lambda path=path: visitor.get(path))  # type: ignore[misc]
                    report.figure(f"{name}: {what}", taken, "s", at_most=1.0)


class Visitor:
    """Somebody who has logged in."""

    def __init__(self, host: str, token: str) -> None:
        self._host = host
        self._headers: dict[str, str] = {}
        answer = self._ask("POST", "/login", urlencode({"token": token}))
        self._headers = {"Cookie": answer.headers["Set-Cookie"].partition(";")[0]}

    def get(self, path: str) -> None:
        answer = self._ask("GET", path)
        assert answer.status == 200, answer.status

    def _ask(self, method: str, path: str, body: str | None = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self._host, timeout=60)
        form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://{self._host}"} if body else {}
        connection.request(method, path, body, self._headers | form)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer


@contextmanager
def dashboard(url: str, bootstrap: str) -> Iterator[Visitor]:
    token = secrets.token_urlsafe()
    variables = {"TIDEGATE_LEDGER": url, "TIDEGATE_KAFKA": bootstrap, "TIDEGATE_DASHBOARD_TOKEN": token}
    command = [sys.executable, "-m", "tidegate.cli", "dashboard", "--port", "0"]
    with subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Visitor(urlsplit(process.stdout.readline().split()[-1]).netloc, token)
        finally:
            process.terminate()
