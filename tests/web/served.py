"""A dashboard that was started as a program, and requests to it that no browser would send."""

from __future__ import annotations

import http.client
import os
import re
import secrets
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

SECONDS = 60.0


class NotServed(Exception):
    """The dashboard ended before it began; with what it said."""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    text: str


@dataclass
class Served:
    """One dashboard, on a port of its own."""

    process: subprocess.Popen[str]
    printed: str
    errors: Path
    token: str = ""

    @classmethod
    def start(
        cls, folder: Path, *options: str, program: tuple[str, ...] = ("-m", "tidegate.cli"), **environ: str
    ) -> Served:
        command = [sys.executable, *program, "dashboard", "--port", "0", *options]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        environment = kept | {"PYTHONDONTWRITEBYTECODE": "1"} | environ
        errors = folder / f"{secrets.token_hex(4)}.log"
        with errors.open("w") as log:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert process.stdout is not None
        served = cls(process, process.stdout.readline(), errors)
        if not served.printed:
            served.process.wait(SECONDS)
            served.close()
            raise NotServed(served.log)
        served.token = served.printed.strip().partition("#")[2]
        return served

    @property
    def log(self) -> str:
        """What it wrote to standard error."""
        return self.errors.read_text()

    @property
    def address(self) -> str:
        found = re.search(r"http://\S+?/(?=login)", self.printed)
        assert found, self.printed
        return found[0]

    @property
    def host(self) -> str:
        return urlsplit(self.address).netloc

    def ask(
        self,
        path: str,
        *,
        cookie: str | None = None,
        form: dict[str, str] | None = None,
        headers: dict[str, str | None] | None = None,
    ) -> Answer:
        """A request; a header that is given as none is left out."""
        sent: dict[str, str | None] = {"Host": self.host, "Accept": "text/html"}
        if cookie is not None:
            sent["Cookie"] = cookie
        body = None
        if form is not None:
            body = urlencode(form)
            sent |= {"Content-Type": "application/x-www-form-urlencoded", "Origin": self.address.rstrip("/")}
        sent |= headers or {}
        connection = http.client.HTTPConnection(self.host, timeout=SECONDS)
        try:
            told = {name: value for name, value in sent.items() if value is not None}
            connection.request("POST" if form is not None else "GET", path, body, told)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
            return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, text)
        finally:
            connection.close()

    def log_in(self) -> str:
        """The cookie of a new session."""
        answer = self.ask("/login", form={"token": self.token})
        assert answer.status == 303, answer.text
        return answer.headers["set-cookie"].partition(";")[0]

    def csrf(self, cookie: str) -> str:
        found = re.search(r'name="csrf" value="([^"]+)"', self.ask("/", cookie=cookie).text)
        assert found
        return found[1]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
