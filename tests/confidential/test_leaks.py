"""Secrets in other spellings, names that a terminal would obey, and files that others could read."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli import main as _registered  # noqa: F401
from tidegate.cli.options import app, complete_groups
from tidegate.core.masks import masked, shown
from tidegate.core.records import TopicPartition
from tidegate.errors import ConfigurationError
from tidegate.ledger import open_ledger
from tidegate.sandbox import Redis

SECRET = "hunter2-planted"
ESCAPE = "evil\x1b]0;owned\x07\x1b[2J\u202e"


@pytest.mark.parametrize(
    "text",
    [
        f"password = {SECRET}",
        f"password: {SECRET}",
        f"Password :  '{SECRET} with words'",
        f'password="{SECRET} with words"',
        f"login failed (pwd={SECRET})",
        f"PWD={SECRET};server=x",
        f"Authorization: Bearer {SECRET}",
        f"the header was bearer {SECRET}, which is refused",
        f"Authorization: Basic {SECRET}",
        f"basic.auth.user.info=me:{SECRET}",
        f"basic.auth.user.info = me:{SECRET}",
        f"sasl.oauthbearer.extensions=tenant={SECRET}",
        f"{{'api_key': '{SECRET} x'}}",
        f"client_secret => {SECRET}",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----",
        f"ssl.key.pem = -----BEGIN EC PRIVATE KEY----- x {SECRET} -----END EC PRIVATE KEY-----",
        f"a key that was cut off: -----BEGIN RSA PRIVATE KEY-----\\nx\\n{SECRET}",
    ],
)
def test_a_secret_is_masked_however_it_is_written(text: str) -> None:
    assert SECRET not in masked(text)


@pytest.mark.parametrize(
    "text",
    [
        'password authentication failed for user "shop"',
        "are address, user and password right?",
        "the key of the record: 17",
        "a token of 32 characters",
        "orders[0] at offset 17: ValueError: no",
    ],
)
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize(
    "key", ["basic.auth.user.info", "schema.registry.basic.auth.user.info", "sasl.oauthbearer.extensions", "db.pwd"]
)
def test_a_setting_that_holds_a_secret_is_not_shown(key: str) -> None:
    assert shown(key, f"x={SECRET}") == "***"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://host/db?user=me&pwd={SECRET}",
        f"redis://me:{SECRET} x@host/0",
        f"host=h password = {SECRET}",
        f"mysql+pymysql://me@host/db?PASSWD={SECRET}",
    ],
)
def test_a_ledger_with_a_password_is_refused_as_an_argument(url: str) -> None:
    done = CliRunner().invoke(app, ["status", "--ledger", url])
    assert (done.exit_code, "TIDEGATE_LEDGER" in done.output) == (2, True)
    assert SECRET not in done.output


def test_names_are_escaped_in_errors_and_left_out_of_completions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with open_ledger(url) as ledger:
        ledger.create()
        for group in (ESCAPE, "every-day"):
            ledger.claim(group, [TopicPartition("orders", 0)])
    monkeypatch.setenv("TIDEGATE_LEDGER", url)
    for arguments in (["nosuch"], ["nosuch", "--debug"], [f"{ESCAPE}x"]):
        done = CliRunner().invoke(app, ["status", *arguments])
        assert done.exit_code == 2
        assert "\\x1b" in done.output
        assert not {"\x1b", "\x07", "\u202e"} & set(done.output)
    assert complete_groups("ev") == ["every-day"]


@pytest.mark.parametrize("option", ["local_infile=1", "local_infile=0", "LOCAL_INFILE=true"])
def test_a_ledger_that_lets_its_server_read_files_is_refused(option: str) -> None:
    with pytest.raises(ConfigurationError, match="local_infile"):
        open_ledger(f"mysql+pymysql://me@localhost/shop?{option}")


def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    before = os.umask(0o022)
    try:
        with open_ledger(f"sqlite:///{file}") as ledger:
            ledger.create()
            ledger.claim("billing", [TopicPartition("orders", 0)])
            assert {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in tmp_path.iterdir()} == {
                path.name: "0o600" for path in tmp_path.iterdir()
            }
        file.chmod(0o640)
        with open_ledger(f"sqlite:///{file}") as ledger:
            ledger.read("billing")
        assert stat.S_IMODE(file.stat().st_mode) == 0o640, "the mode of a file that exists is its owner's choice"
    finally:
        os.umask(before)


def test_servers_of_the_sandbox_do_not_get_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("TIDEGATE_LEDGER", f"postgresql://me:{SECRET}@db/shop")
    with Redis() as server:
        assert server.pid is not None
        supervisor = int(Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[1])
        told = _environment(supervisor)
        assert "PATH=" in told
        assert SECRET not in told + _environment(server.pid)


def _environment(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")


DRIVER = """
import os, sys
from tidegate.spark import session
def launch(**_):
    arguments = os.environ["PYSPARK_SUBMIT_ARGS"].split()
    file = arguments[arguments.index("--properties-file") + 1]
    print(sys.argv[1] in open(file).read(), flush=True)
    sys.stdin.read()
import pyspark.java_gateway
pyspark.java_gateway.launch_gateway = launch
session.launched({"spark.authenticate.secret": sys.argv[1]})
"""


def test_settings_of_spark_are_gone_when_the_driver_is_killed_while_it_starts(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DRIVER, SECRET]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "True\n", "the settings are where Spark is told that they are"
        driver.kill()
        driver.wait(60)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in left if SECRET in path.read_text(errors="replace")]
