"""The protocol keeps its promises in every order of events that the model's bounds allow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.mutants import MUTANTS as SIMULATED

from .checks import CHECKS, DEEP, LIVENESS_CHECKS, SAFETY_CHECKS, actions, situations
from .mutants import MUTANTS, NOT_MODELLED, OTHER_NAMES
from .tlc import LIVENESS, MODEL, SAFETY, Checked, check, text_of

ROOT = MODEL.parents[1]


def holds(config: str) -> Checked:
    checked = check(config)
    assert checked.violated is None, checked.output
    assert checked.complete
    print(f"\n{config}: {checked.states:,} states in {checked.seconds:.1f} s")
    return checked


@pytest.mark.parametrize("config", SAFETY_CHECKS)
def test_nothing_bad_happens_and_all_that_can_happen_does(config: str) -> None:
    checked, bounded = holds(config), SAFETY_CHECKS[config]
    assert {action for action in actions() if checked.taken[action]} == actions() - bounded.not_taken
    assert checked.seen == situations() - bounded.not_seen


@pytest.mark.parametrize("config", LIVENESS_CHECKS)
def test_every_record_is_processed_some_time(config: str) -> None:
    holds(config)


@pytest.mark.chaos
def test_nothing_bad_happens_under_two_faults_and_an_edit() -> None:
    holds(DEEP)


def test_every_action_is_taken_and_every_situation_arises_in_some_check() -> None:
    assert len(actions()) > 20
    assert len(situations()) > 10
    assert not frozenset.intersection(*(bounded.not_taken for bounded in SAFETY_CHECKS.values()))
    assert not frozenset.intersection(*(bounded.not_seen for bounded in SAFETY_CHECKS.values()))


def _mutants() -> Iterator[Any]:
    """One for each property, which so is shown to be able to fail; all the others in `make chaos` and `make model`."""
    shown: set[str] = set()
    for name, mutant in MUTANTS.items():
        yield pytest.param(name, marks=[pytest.mark.chaos] if mutant.violates in shown else [])
        shown.add(mutant.violates)


@pytest.mark.parametrize("name", list(_mutants()))
def test_a_model_with_one_rule_replaced_by_a_worse_one_is_caught(name: str) -> None:
    checked = MUTANTS[name].check()
    assert checked.violated == MUTANTS[name].violates, checked.output
    print(f"\n{name}: {checked.violated} is violated, found in {checked.states} states")


def test_each_mutant_of_the_simulation_has_one_in_the_model_or_a_reason_why_not() -> None:
    assert set(OTHER_NAMES.values()) <= MUTANTS.keys()
    undecided = SIMULATED.keys() - MUTANTS.keys() - OTHER_NAMES.keys() - NOT_MODELLED.keys()
    assert not undecided, "add a mutant to the model that leaves out the same rule, or say why none can: mutants.py"
    assert OTHER_NAMES.keys() | NOT_MODELLED.keys() <= SIMULATED.keys() - MUTANTS.keys()


def test_the_page_shows_the_model_as_it_is() -> None:
    page, model = (ROOT / "docs" / "model.md").read_text(encoding="utf-8"), text_of("Tidegate.tla")
    shown = re.findall(r"^```tla\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert shown
    assert not [excerpt for excerpt in shown if re.sub(r" +", " ", excerpt) not in re.sub(r" +", " ", model)]


def test_the_page_names_every_property_and_every_check() -> None:
    page = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
    assert not [name for name in (*SAFETY, LIVENESS, *CHECKS, DEEP) if f"| `{name}` |" not in page]


def test_the_code_that_the_model_names_exists() -> None:
    comments = "\n".join(re.findall(r"\\\*.*", text_of("Tidegate.tla")))
    named = set(re.findall(r"\b([A-Z][a-z]\w+)\.(_?[a-z]\w+)", comments))
    sources = [path.read_text(encoding="utf-8") for path in Path(ROOT, "src").rglob("*.py")]
    assert len(named) > 15
    assert not {
        f"{owner}.{method}"
        for owner, method in named
        if not any(re.search(rf"^class {owner}\b", text, re.M) and f"def {method}(" in text for text in sources)
    }


def test_every_configuration_is_checked() -> None:
    assert {path.stem for path in MODEL.glob("*.cfg")} == {*CHECKS, DEEP}
