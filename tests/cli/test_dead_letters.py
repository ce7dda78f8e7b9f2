"""`tidegate dead-letters`: what it lists and shows, and that it changes nothing before it is told to."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tidegate import Ledger, Record, Span, TopicPartition, open_ledger
from tidegate.cli import ExitCode
from tidegate.cli import main as _registered  # noqa: F401
from tidegate.cli.options import app
from tidegate.cli.output import harmless, lines_of
from tidegate.ledger import FailedRecord
from tidegate.operate.letters import error_kind

from .conftest import Run
from .golden import check_golden, timeless

ORDERS = TopicPartition("orders", 0)
HOSTILE = b'{"name": "\x1b]0;owned\x07\x1b[2J\xc2\x9b31m\xe2\x80\xaeevil"}\r\n{"more": 1}'
RECORDS = [
    Record("orders", 0, 3, b"ann", b"good", (("trace", b"\xff\x00"), ("none", None)), 1_700_000_000_123),
    Record("orders", 0, 5, None, b"bad"),
    Record("orders", 0, 7, b"\xfe", HOSTILE),
    Record("returns", 2, 2**40, None, None),
]


@pytest.fixture
def url(directory: Path) -> str:
    shutil.copy(Path(__file__).with_name("letters.py"), directory)
    with sqlite3.connect(directory / "shop.db") as db:
        db.execute("CREATE TABLE bills (at INTEGER)")
    db.close()
    return f"sqlite:///{directory / 'shop.db'}"


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger[Any]]:
    with open_ledger(url) as opened:

        def park(tx: Any) -> None:
            for record in RECORDS:
                tx.park(FailedRecord(record, "ValueError: no \x1b[31mcustomer\nof that name", 2))

        opened.transact(opened.claim("billing", [ORDERS]), [Span(ORDERS, 0, 9, 9)], park)
        opened.transact(
            opened.claim("shipping", [ORDERS]),
            [Span(ORDERS, 0, 9, 9)],
            lambda tx: tx.park(FailedRecord(RECORDS[0], "e" * 500)),
        )
        yield opened


def invoke(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["dead-letters", *arguments], env={"TIDEGATE_LEDGER": url, "TIDEGATE_CONFIG": None})


def ids(ledger: Ledger[Any], group: str = "billing") -> list[int]:
    return [parked.id for parked in ledger.dead_letters(group)]


def bills(url: str) -> list[int]:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as db:
        found = [row[0] for row in db.execute("SELECT at FROM bills ORDER BY at")]
    db.close()
    return found


def is_harmless(text: str) -> bool:
    return all(each.isprintable() or each == "\n" for each in text)


def test_letters_of_all_groups_are_listed(url: str, ledger: Ledger[Any]) -> None:
    check_golden("dead_letters_list.txt", timeless(invoke(url, "list").stdout))
    check_golden("dead_letters_list.json", timeless(invoke(url, "list", "--json").stdout))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["billing"], [3, 5, 7, 2**40]),
        (["billing", "--topic", "orders"], [3, 5, 7]),
        (["billing", "--limit", "2"], [3, 5]),
    ],
)
def test_group_topic_and_limit_choose(url: str, ledger: Ledger[Any], arguments: list[str], expected: list[int]) -> None:
    found = json.loads(invoke(url, "list", *arguments, "--json").stdout)["dead_letters"]
    assert [each["offset"] for each in found] == expected


def test_the_list_says_how_many_there_are_in_all(url: str, ledger: Ledger[Any]) -> None:
    assert invoke(url, "list", "billing").stdout.endswith("\n4 dead letters in all\n")
    assert invoke(url, "list", "--limit", "2").stdout.endswith("\n2 shown, 5 dead letters in all; --limit shows more\n")
    done = invoke(url, "list", "billing", "--topic", "orders")
    assert done.stdout.endswith("\n3 shown, 4 dead letters of all topics\n")
    assert json.loads(invoke(url, "list", "--json").stdout)["total"] == 5
    ledger.drop_letters("shipping", ids(ledger, "shipping"))
    assert invoke(url, "list", "shipping").stdout.endswith("no dead letters\n")


def test_letters_are_counted_by_error(url: str, ledger: Ledger[Any]) -> None:
    tp = TopicPartition("orders", 1)
    parked = [FailedRecord(Record("orders", 1, n), f"KeyError: 'customer {n}' at {n}.5") for n in range(7)]
    ledger.transact(
        ledger.claim("billing", [tp]), [Span(tp, 0, 9, 9)], lambda tx: [tx.park(letter) for letter in parked]
    )
    found = json.loads(invoke(url, "list", "billing", "--by-error", "--json").stdout)["errors"]
    assert [(each["letters"], each["kind"]) for each in found] == [
        (7, "KeyError: … at …"),
        (4, "ValueError: no \x1b[… of that name"),
    ]
    told = invoke(url, "list", "--by-error").stdout
    assert is_harmless(told)
    assert told.endswith("\n12 dead letters in all\n")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("KeyError: 'customer 7' at 7.5", "KeyError: … at …"),
        ("ValueError: it isn't 'a' but can't be b'x'", "ValueError: it isn't … but can't be …"),
        ("'utf-8' codec can't decode byte 0x80: invalid start byte", "… codec can't decode byte … invalid start byte"),
        ("'utf-8' codec can't decode byte 0x80: unexpected end", "… codec can't decode byte … unexpected end"),
        ("KeyError: 'a name that was cut o", "KeyError: …"),
        ("ValueError: b'bytes that were cut o", "ValueError: …"),
    ],
)
def test_quoted_values_and_numbers_make_no_kind_of_their_own(error: str, kind: str) -> None:
    assert error_kind(error) == kind


@pytest.mark.parametrize("command", [["list"], ["show", "1"], ["drop", "--all"]])
def test_a_group_that_is_not_there_is_an_error(url: str, ledger: Ledger[Any], command: list[str]) -> None:
    done = invoke(url, command[0], "nobody", *command[1:])
    assert done.exit_code == ExitCode.CONFIGURATION
    assert "the ledger has no group 'nobody'; it has: billing, shipping" in done.stderr


def test_a_letter_is_shown_with_its_payload(url: str, ledger: Ledger[Any]) -> None:
    for number, name in zip(ids(ledger), ["good", "bad", "hostile", "tombstone"], strict=True):
        done = invoke(url, "show", "billing", str(number))
        assert done.exit_code == ExitCode.OK
        assert is_harmless(done.stdout)
        check_golden(f"dead_letters_show_{name}.txt", timeless(done.stdout))


def test_a_letter_is_shown_as_json_with_every_byte_of_it(url: str, ledger: Ledger[Any]) -> None:
    done = invoke(url, "show", "billing", str(ids(ledger)[2]), "--json")
    assert done.stdout.isascii()
    assert is_harmless(done.stdout)
    record = json.loads(done.stdout)["record"]
    assert (record["value"].encode(), record["key_base64"]) == (HOSTILE, "/g==")
    check_golden("dead_letters_show.json", timeless(invoke(url, "show", "billing", "1", "--json").stdout))


@pytest.mark.parametrize("number", ["999", "9" * 20])
def test_a_letter_that_is_not_there_is_an_error(url: str, ledger: Ledger[Any], number: str) -> None:
    done = invoke(url, "show", "billing", number)
    assert done.exit_code == ExitCode.FAILED
    assert f"group 'billing' has no dead letter {number}" in done.stderr
    done = invoke(url, "drop", "billing", "--id", number)
    assert "OverflowError" not in done.output


def test_dropping_is_a_preview_until_it_is_executed(url: str, ledger: Ledger[Any]) -> None:
    first, second, *_ = before = ids(ledger)
    done = invoke(url, "drop", "billing", "--id", str(first), "--id", str(second))
    check_golden("dead_letters_drop_preview.txt", timeless(done.stdout))
    assert ids(ledger) == before
    done = invoke(url, "drop", "billing", "--id", str(first), "--id", "999", "--execute")
    assert (done.exit_code, done.stdout) == (0, "dropped 1 dead letter\n")
    assert ids(ledger) == before[1:]
    done = invoke(url, "drop", "billing", "--all", "--topic", "orders", "--execute", "--json")
    assert json.loads(done.stdout) == {"dropped": 2}
    assert ids(ledger) == before[-1:]
    assert len(ids(ledger, "shipping")) == 1


@pytest.mark.parametrize("arguments", [[], ["--all", "--id", "1"]])
def test_which_ones_has_to_be_said(url: str, ledger: Ledger[Any], arguments: list[str]) -> None:
    done = invoke(url, "drop", "billing", "--execute", *arguments)
    assert done.exit_code == ExitCode.CONFIGURATION
    assert "which ones?" in done.stderr
    assert len(ids(ledger)) == 4


def test_a_password_on_the_command_line_is_refused(url: str) -> None:
    done = invoke(url, "list", "--ledger", "postgresql+psycopg://me:pl4nted@db/shop")
    assert done.exit_code == ExitCode.CONFIGURATION
    assert "everybody on this machine could read" in done.stderr
    assert "pl4nted" not in done.output


def test_a_replay_is_a_preview_until_it_is_executed(run: Run, url: str, ledger: Ledger[Any]) -> None:
    before = ids(ledger)
    arguments = ["dead-letters", "replay", "letters:app", "billing", "--topic", "orders", "--all"]
    done = run(*arguments, TIDEGATE_LEDGER=url)
    check_golden("dead_letters_replay_preview.txt", timeless(done.stdout))
    assert (done.returncode, ids(ledger), bills(url)) == (0, before, [])
    done = run(*arguments, "--execute", TIDEGATE_LEDGER=url)
    check_golden("dead_letters_replay.txt", done.stdout)
    assert is_harmless(done.stdout)
    assert done.returncode == ExitCode.FAILED
    assert (ids(ledger), bills(url)) == ([before[1], before[3]], [3, 7])
    done = run(*arguments, "--execute", "--json", TIDEGATE_LEDGER=url)
    check_golden("dead_letters_replay.json", done.stdout)


def test_a_replay_that_ends_with_an_error_shows_what_was_done_before_it(
    run: Run, url: str, ledger: Ledger[Any]
) -> None:
    """The last letter is of a topic that nobody listens to."""
    done = run("dead-letters", "replay", "letters:app", "billing", "--all", "--execute", "--json", TIDEGATE_LEDGER=url)
    assert done.returncode == ExitCode.CONFIGURATION, done.stderr
    assert [each["outcome"] for each in json.loads(done.stdout)["replayed"]] == ["replayed", "failed", "replayed"]
    assert bills(url) == [3, 7]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["letters:app", "nobody", "--all"], "the app has no listener of group 'nobody'; its groups are: billing"),
        (["letters:not_an_app", "billing", "--all"], "letters:not_an_app is of type Other"),
        (["letters:app", "billing"], "which ones?"),
        (["a", "b", "c", "--all"], "name the app and the group"),
        (["billing", "--all"], "nothing to run: name an app"),
    ],
)
def test_what_cannot_be_replayed_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, directory: Path, url: str, ledger: Ledger[Any], arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(directory)
    done = invoke(url, "replay", *arguments)
    assert done.exit_code == ExitCode.CONFIGURATION
    assert said in done.stderr


def test_a_sink_of_the_settings_replays_its_letters(run: Run, directory: Path, url: str, ledger: Ledger[Any]) -> None:
    (directory / "tidegate.toml").write_text(
        'kafka = "nowhere.invalid:9092"\n[sink.bills]\ntopics = "orders"\ngroup = "billing"\n[sink.bills.into]\n'
        'table = "bills"'
    )
    ledger.transact(
        ledger.claim("billing", [ORDERS]),
        [Span(ORDERS, 9, 10, 1)],
        lambda tx: tx.park(FailedRecord(Record("orders", 0, 9, None, b'{"at": 77}'), "no")),
    )
    number = ids(ledger)[-1]
    done = run("dead-letters", "replay", "billing", "--id", str(number), "--execute", TIDEGATE_LEDGER=url)
    assert done.returncode == 0, done.stderr
    assert bills(url) == [77]
    assert number not in ids(ledger)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünï 🌊", "plain ünï 🌊"),
        ("\x1b[2J\x07\x00\x7f", r"\x1b[2J\x07\x00\x7f"),
        ("a\tb\nc\rd", r"a\tb\nc\rd"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202eevil\u2066", r"\u202eevil\u2066"),
        ("\ud800", r"\ud800"),
    ],
)
def test_nothing_that_a_terminal_obeys_is_shown_as_it_is(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_a_large_payload_is_cut_and_says_so() -> None:
    what, lines = lines_of(b"x" * 1_000_000)
    assert (what, len(lines)) == ("1000000 bytes, text", 1)
    assert lines[0].endswith("… and 998000 characters more; --json has all of it")
    what, lines = lines_of(b"\xff" * 1_000_000)
    assert what == "1000000 bytes, base64"
    assert len(lines) == 201
    assert lines[-1].endswith("lines more; --json has all of it")
