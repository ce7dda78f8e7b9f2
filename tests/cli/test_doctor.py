"""`tidegate doctor` finds what is wrong: every fault is planted, on real servers where there is one to plant it in."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import create_engine, text
from tests.confidential.login import broker_with_login
from tests.ports import refused_port
from typer.testing import CliRunner, Result

from tidegate import open_ledger
from tidegate.cli import ExitCode
from tidegate.cli import main as _registered  # noqa: F401
from tidegate.cli.doctor import examine_ledger
from tidegate.cli.options import app
from tidegate.core.findings import Finding, Verdict
from tidegate.kafka.doctor import examine_cluster
from tidegate.ledger.sql.doctor import network_file_system
from tidegate.sandbox import Kafka, MariaDB, MySQL, Postgres, Redis, Registry
from tidegate.sandbox.database import Database

from .golden import check_golden

PLANTED = "pl4nted"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["mariadb", "mysql", "postgres"])
def server(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(request.param)
    return found


def invoke(*arguments: str, **environ: str) -> Result:
    done = CliRunner().invoke(app, ["doctor", *arguments], env={"TIDEGATE_CONFIG": None, **environ})
    assert PLANTED not in done.output
    return done


def findings(*arguments: str, **environ: str) -> list[dict[str, Any]]:
    done = invoke("--json", *arguments, **environ)
    told = json.loads(done.stdout)
    assert done.exit_code == (ExitCode.FAILED if told["counts"]["fault"] else ExitCode.OK)
    found: list[dict[str, Any]] = told["findings"]
    return found


def of(found: list[dict[str, Any]], check: str, verdict: str) -> str:
    """What the only finding of that check and verdict says, with its advice."""
    (only,) = [each for each in found if (each["check"], each["verdict"]) == (check, verdict)]
    return f"{only['said']} → {only['advice']}"


def ledger_of(found: Iterator[Finding]) -> list[dict[str, Any]]:
    return [{**each._asdict(), "verdict": each.verdict.value} for each in found]


# Kafka


def test_a_wrong_password_for_the_broker_is_a_fault_and_is_not_shown() -> None:
    with broker_with_login() as login:
        client = {f"TIDEGATE_KAFKA__CLIENT__{key.upper().replace('.', '_')}": value for key, value in login.items()}
        client["TIDEGATE_KAFKA"] = client.pop("TIDEGATE_KAFKA__CLIENT__BOOTSTRAP_SERVERS")
        assert "1 of cluster" in of(findings(TIDEGATE_LEDGER="memory://", **client), "broker", "ok")
        client["TIDEGATE_KAFKA__CLIENT__SASL_PASSWORD"] = PLANTED
        said = of(findings(TIDEGATE_LEDGER="memory://", **client), "broker", "fault")
    assert "Authentication failed" in said
    assert "the login (sasl.*)" in said


def test_no_broker_is_a_fault() -> None:
    said = of(findings(TIDEGATE_KAFKA=f"127.0.0.1:{refused_port()}", TIDEGATE_LEDGER="memory://"), "broker", "fault")
    assert "connection refused" in said
    said = of(findings(TIDEGATE_KAFKA="nowhere.invalid:9092", TIDEGATE_LEDGER="memory://"), "broker", "fault")
    assert "nowhere.invalid:9092: the name is not known" in said
    assert "no broker is named" in of(findings(TIDEGATE_LEDGER="memory://"), "broker", "fault")


def test_a_server_that_is_no_broker_is_a_fault(redis_server: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.kafka.doctor._ANSWER", 1.0)
    found = findings(TIDEGATE_KAFKA=f"{redis_server.host}:{redis_server.port}", TIDEGATE_LEDGER="memory://")
    assert "can be reached, but does not answer" in of(found, "broker", "fault")


def test_an_address_that_the_broker_gives_and_nobody_can_reach_is_a_fault() -> None:
    wrong = refused_port()
    with Kafka(advertised=("127.0.0.1", wrong)) as kafka:
        found = findings(TIDEGATE_KAFKA=f"{kafka.host}:{kafka.port}", TIDEGATE_LEDGER="memory://")
    assert "1 of cluster" in of(found, "broker", "ok")
    said = of(found, "listeners", "fault")
    assert f"broker 1 advertises the address 127.0.0.1:{wrong}, which cannot be reached from here" in said
    assert "advertised.listeners" in said


def test_topics_that_are_missing_or_weak_are_warned_of(kafka: Kafka) -> None:
    name = f"weak-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    found = list(examine_cluster({"bootstrap.servers": f"{kafka.bootstrap},127.0.0.1:1"}, {"nowhere"}, [f"^{name}"]))
    warnings = [finding.said for finding in found if finding.verdict is Verdict.WARNING]
    assert "127.0.0.1:1 cannot be reached: connection refused" in warnings
    assert "there is no topic nowhere" in warnings
    assert any(said.startswith(f"topic {name}: replication factor is 1") for said in warnings)
    assert any(said.startswith(f"topic {name}: min.insync.replicas is 1") for said in warnings)
    assert not [finding for finding in found if finding.verdict is Verdict.FAULT]


# Settings and this machine


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TIDEGATE_KAFKA__CLIENT__ENABLE_AUTO_COMMIT", "true", "the client setting 'enable.auto.commit' is refused"),
        ("TIDEGATE_KAFKA__CLIENT__ISOLATION_LEVEL", "read_uncommitted", "records of aborted transactions"),
        ("TIDEGATE_LEGDER", f"redis://:{PLANTED}@x", "did you mean TIDEGATE_LEDGER"),
    ],
)
def test_a_setting_that_breaks_the_guarantee_is_a_fault(variable: str, value: str, said: str) -> None:
    assert said in of(findings(**{variable: value}), "settings", "fault")


def test_a_driver_that_is_not_installed_is_a_fault_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    said = of(findings(TIDEGATE_LEDGER=f"postgresql+psycopg://me:{PLANTED}@127.0.0.1/shop"), "ledger", "fault")
    assert "pip install 'tidegate[postgres]'" in said


def test_no_java_is_a_warning_and_a_fault_where_a_pipeline_is_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "listeners do without it" in of(findings(TIDEGATE_LEDGER="memory://"), "java", "warning")
    said = of(findings("--spark", TIDEGATE_LEDGER="memory://"), "java", "fault")
    assert "a pipeline needs Java, and there is none on PATH" in said
    assert "JAVA_HOME" in said


def test_an_app_that_cannot_be_loaded_is_a_fault() -> None:
    assert "there is no module 'nowhere_at_all'" in of(findings("nowhere_at_all:app"), "app", "fault")


def test_a_sink_of_the_settings_that_cannot_be_used_is_a_fault_of_the_settings(tmp_path: Path) -> None:
    sink = "[sink.orders]\ntopics = 'orders'\nformat = 'avro'\ninto = { table = 'orders' }\n"
    (tmp_path / "tidegate.toml").write_text(f"ledger = 'memory://'\n[kafka]\nbootstrap = 'nowhere.invalid:1'\n{sink}")
    said = of(findings(), "app", "fault")
    assert "the format needs a schema registry" in said
    assert "fix the settings" in said


def test_less_than_exactly_once_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_text(
        'kafka = "127.0.0.1:1"\nledger = "sqlite:///shop.db"\n[listener]\ndelivery = "at-most-once"\n'
        '[sink.orders]\ntopics = "orders"\n[sink.orders.into]\ntable = "orders"'
    )
    assert "group 'sink-orders' is at-most-once: a crash may lose records" in of(findings(), "delivery", "warning")


# The ledger


def test_a_database_that_is_not_there_is_a_fault(server: Database) -> None:
    found = findings(TIDEGATE_LEDGER=server.url_for(port=refused_port(), password=PLANTED))
    assert "cannot open the ledger" in of(found, "ledger", "fault")


def test_a_wrong_password_is_a_fault_and_is_not_shown(server: Database) -> None:
    said = of(findings(TIDEGATE_LEDGER=server.url_for(password=PLANTED)), "ledger", "fault")
    assert "are address, user and password right?" in said
    assert "denied" in said or "authentication failed" in said


@pytest.fixture
def prefix(server: Database) -> str:
    """A ledger of its own."""
    name = f"d{secrets.token_hex(5)}_"
    with open_ledger(server.url, prefix=name) as ledger:
        ledger.create()
    return name


def sql(server: Database, *statements: str) -> None:
    engine = create_engine(server.url)
    with engine.begin() as conn:
        for statement in statements:
            conn.execute(text(statement))
    engine.dispose()


def login(server: Database, prefix: str, grants: dict[str, str]) -> str:
    """A login with these rights on the ledger's tables; its URL."""
    user = f"{prefix}user"
    password = "IDENTIFIED BY" if isinstance(server, (MariaDB, MySQL)) else "PASSWORD"
    statements = [f"GRANT {rights} ON {prefix}{table} TO {user}" for table, rights in grants.items()]
    sql(server, f"CREATE USER {user} {password} '{PLANTED}'", *statements)
    return server.url_for(user, PLANTED)


CONSUMER = {
    "schema": "SELECT",
    "positions": "SELECT, INSERT, UPDATE",
    "groups": "SELECT, INSERT, UPDATE",
    "journal": "SELECT, INSERT",
    "history": "SELECT, INSERT",
    "dead_letters": "SELECT, INSERT",
    "deployments": "SELECT, INSERT",
    "changes": "SELECT, INSERT, DELETE",
}


def test_a_missing_right_is_a_fault_that_names_it(server: Database, prefix: str) -> None:
    given = {**CONSUMER, "positions": "SELECT, INSERT", "journal": "SELECT", "changes": "SELECT, INSERT"}
    url = login(server, prefix, given)
    said = of(findings(TIDEGATE_LEDGER=url, TIDEGATE_LEDGER__PREFIX=prefix), "grants", "fault")
    lacking = f"UPDATE on {prefix}positions, INSERT on {prefix}journal, DELETE on {prefix}changes"
    assert f"the login may not {lacking} →" in said


def test_rights_of_operators_are_wanted_and_not_needed(server: Database, prefix: str) -> None:
    url = login(server, prefix, CONSUMER)
    said = of(findings(TIDEGATE_LEDGER=url, TIDEGATE_LEDGER__PREFIX=prefix), "grants", "warning")
    assert f"DELETE on {prefix}journal, DELETE on {prefix}history, UPDATE on {prefix}dead_letters, DELETE on" in said


def test_the_examination_changes_nothing_and_finds_a_good_ledger_good(server: Database, prefix: str) -> None:
    found = findings(TIDEGATE_LEDGER=server.url, TIDEGATE_LEDGER__PREFIX=prefix)
    assert of(found, "tables", "ok")
    assert of(found, "grants", "ok")
    assert of(found, "clock", "ok")
    with open_ledger(server.url, prefix=prefix) as ledger:
        assert ledger.read_all() == {}


def test_tables_of_a_newer_version_or_missing_ones_are_faults(server: Database, prefix: str) -> None:
    environ = {"TIDEGATE_LEDGER": server.url, "TIDEGATE_LEDGER__PREFIX": prefix}
    sql(server, f"DROP TABLE {prefix}dead_letters")
    assert f"there is no table {prefix}dead_letters" in of(findings(**environ), "tables", "fault")
    sql(server, f"INSERT INTO {prefix}schema (version) VALUES (99)")
    assert "has schema version 99, this Tidegate knows only up to" in of(findings(**environ), "tables", "fault")
    sql(server, f"DELETE FROM {prefix}schema WHERE version > 1")
    assert "the tables have schema version 1" in of(findings(**environ), "tables", "fault")
    sql(server, f"DROP TABLE {prefix}schema")
    assert "has no tables yet" in of(findings(**environ), "tables", "warning")


def test_a_database_that_may_lose_commits_is_warned_of(server: Database, prefix: str) -> None:
    if isinstance(server, (MariaDB, MySQL)):
        url = server.url.replace("mysql+", "mariadb+") if isinstance(server, MariaDB) else server.url
        setting = "innodb_flush_log_at_trx_commit"
        try:
            for value, is_weak in ((2, True), (1, False)):
                sql(server, f"SET GLOBAL {setting} = {value}")
                with open_ledger(url, prefix=prefix) as ledger:
                    assert any(f"{setting} is {value}" in each.said for each in examine_ledger(ledger)) == is_weak
        finally:
            sql(server, f"SET GLOBAL {setting} = 1")
        return
    sql(server, f"ALTER ROLE {_user(server)} SET synchronous_commit = off")
    try:
        found = findings(TIDEGATE_LEDGER=server.url, TIDEGATE_LEDGER__PREFIX=prefix)
        assert "synchronous_commit is off: the last commits may be lost" in of(found, "durability", "warning")
    finally:
        sql(server, f"ALTER ROLE {_user(server)} RESET synchronous_commit")


def _user(server: Database) -> str:
    return server.url.partition("://")[2].partition(":")[0]


@pytest.mark.parametrize(("hours", "said"), [(-1, "3600 s ahead of"), (1, "3600 s behind")])
def test_clocks_that_differ_are_warned_of(server: Database, prefix: str, hours: int, said: str) -> None:
    with open_ledger(server.url, prefix=prefix) as ledger:
        shifted: Callable[[], datetime] = lambda: datetime.now(UTC) + timedelta(hours=hours)  # noqa: E731
        assert said in of(ledger_of(examine_ledger(ledger, shifted)), "clock", "warning")


# SQLite and Redis


def test_a_file_that_is_missing_or_cannot_be_written_is_told(tmp_path: Path) -> None:
    found = findings(TIDEGATE_LEDGER=f"sqlite:///{tmp_path / 'new.db'}")
    assert "it is created on first use" in of(found, "ledger", "warning")
    assert not (tmp_path / "new.db").exists()
    found = findings(TIDEGATE_LEDGER=f"sqlite:///{tmp_path / 'gone' / 'new.db'}")
    assert "cannot be created" in of(found, "ledger", "fault")
    (tmp_path / "text.db").write_text("this is no database, and long enough to be seen as such" * 20)
    found = findings(TIDEGATE_LEDGER=f"sqlite:///{tmp_path / 'text.db'}")
    assert "not a database" in of(found, "ledger", "fault")


def test_a_file_on_the_network_is_found(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda1 / ext4 rw 0 0\n"
        "nas:/export /mnt/my\\040files nfs4 rw 0 0\n"
        "tmpfs /mnt/my\\040files/local tmpfs rw 0 0\n"
    )
    assert network_file_system(Path("/mnt/my files/shop"), mounts) == "nfs4"
    assert network_file_system(Path("/mnt/my files/local"), mounts) is None
    assert network_file_system(Path("/home/shop"), mounts) is None
    assert network_file_system(Path("/home/shop"), tmp_path / "nothing") is None


def test_a_ledger_in_redis_is_examined(redis_server: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = f"{{d{secrets.token_hex(4)}}}:"
    environ = {"TIDEGATE_LEDGER": redis_server.url, "TIDEGATE_LEDGER__PREFIX": prefix}
    found = findings(**environ)
    assert "has no keys yet" in of(found, "tables", "warning")
    assert of(found, "grants", "ok")
    assert of(found, "clock", "ok")
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.keys(f"{prefix}*") == []
        client.set(f"{prefix}schema", 99)
        assert "schema version 99" in of(findings(**environ), "tables", "fault")
        user = f"u{secrets.token_hex(4)}"
        client.acl_setuser(
            user, enabled=True, passwords=[f"+{PLANTED}"], keys=["*"], categories=["+@read"], commands=["+ping"]
        )
        weak = redis_server.url_for(user, PLANTED)
        assert "the login lacks a right" in of(findings(**{**environ, "TIDEGATE_LEDGER": weak}), "grants", "fault")
        client.acl_deluser(user)
    assert "refused the login" in of(findings(**{**environ, "TIDEGATE_LEDGER": weak}), "ledger", "fault")


def test_positions_in_memory_or_in_kafka_are_warned_of() -> None:
    assert "kept in memory" in of(findings(TIDEGATE_LEDGER="memory://"), "ledger", "warning")
    assert "no ledger is named" in of(findings(), "ledger", "warning")


# The command


def test_a_good_setup_is_found_good(kafka: Kafka, postgres: Postgres, tmp_path: Path) -> None:
    name = f"d{secrets.token_hex(5)}_"
    with open_ledger(postgres.url, prefix=name) as ledger:
        ledger.create()
    (tmp_path / "tidegate.toml").write_text(
        f'[kafka]\nbootstrap = "{kafka.bootstrap}"\n[ledger]\nurl = "{postgres.url}"\nprefix = "{name}"\n'
        f'[sink.orders]\ntopics = "nowhere-{name}"\n[sink.orders.into]\ntable = "orders"'
    )
    found = findings("--config", "tidegate.toml", "--spark")
    assert [each for each in found if each["verdict"] == "fault"] == []
    assert of(found, "topics", "warning").startswith(f"there is no topic nowhere-{name}")
    assert {each["check"] for each in found} == {
        *("versions", "java", "packages", "settings", "broker", "listeners", "topics"),
        *("ledger", "tables", "grants", "clock", "durability"),
    }


def test_what_is_printed_is_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.cli.doctor.check_versions", lambda: Finding.ok("versions", "all of them"))
    monkeypatch.setattr(
        "tidegate.cli.doctor.check_java", lambda *, is_needed: Finding.ok("java", "\x1b[31m/usr/bin/java")
    )
    environ = {"TIDEGATE_KAFKA": "127.0.0.1:1", "TIDEGATE_LEDGER": "memory://"}
    check_golden("doctor.txt", invoke(**environ).stdout)
    check_golden("doctor.json", invoke("--json", **environ).stdout)


def test_the_schema_registry_is_asked_if_there_is_one(registry: Registry) -> None:
    answers = of(findings(TIDEGATE_REGISTRY=registry.url), "registry", "ok")
    assert f"the schema registry at 127.0.0.1:{registry.port} answers; it has " in answers
    away = f"http://me:{PLANTED}@127.0.0.1:{refused_port()}"
    said = of(findings(TIDEGATE_REGISTRY=away), "registry", "fault")
    assert "did not answer: [Errno 111] Connection refused → check the address, the login" in said
    assert not [each for each in findings() if each["check"] == "registry"]
