"""The systemd unit and the Kubernetes manifests: what they say is valid, and the options that they use exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tidegate.cli.options import with_every_command
from tidegate.settings import Settings

from .expressions import ROOT

UNIT = ROOT / "deploy" / "tidegate.service"
MANIFESTS = ROOT / "deploy" / "kubernetes.yml"
PAGE = ROOT / "docs" / "running.md"


def unit() -> RawConfigParser:
    parser = RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser


def manifests() -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFESTS.read_text())}


def container() -> dict[str, Any]:
    (only,) = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


COMMANDS = {
    "systemd": shlex.split(unit()["Service"]["ExecStart"]),
    "kubernetes": [str(word) for word in container()["command"]],
}


@pytest.mark.parametrize("where", COMMANDS)
def test_the_command_is_one_that_the_command_line_takes(where: str, tmp_path: Path) -> None:
    program, *words = COMMANDS[where]
    assert Path(program).name == "tidegate"
    name, *rest = words
    parsed = typer.main.get_command(with_every_command()).commands[name].make_context(name, rest).params  # type: ignore[attr-defined]
    assert name == "run"
    assert parsed["target"] == "shop:app"
    assert parsed["metrics_port"] == 9100


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    here = tmp_path / UNIT.name
    here.write_text(UNIT.read_text().replace(COMMANDS["systemd"][0], sys.executable))  # it has to exist
    done = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True, timeout=60)
    assert (done.returncode, [line for line in done.stderr.splitlines() if UNIT.name in line]) == (0, [])


def test_both_give_a_listener_the_time_to_finish() -> None:
    """A stopping app waits for its transaction and for up to 15 s until it has left its group."""
    longest = Settings().ledger.limits.hold + 15
    assert float(unit()["Service"]["TimeoutStopSec"]) > longest
    assert unit()["Service"]["KillSignal"] == "SIGTERM"
    assert unit()["Service"]["KillMode"] == "mixed", "the workers get their signal from the parent, and not twice"
    assert manifests()["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > longest


def test_the_probes_ask_pages_that_exist_at_the_port_that_is_served() -> None:
    served = {
        "name": "metrics",
        "containerPort": int(COMMANDS["kubernetes"][COMMANDS["kubernetes"].index("--metrics-port") + 1]),
    }
    assert served in container()["ports"]
    paths = {name: container()[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {each["port"] for each in paths.values()} == {"metrics"}
    assert {name: each["path"] for name, each in paths.items()} == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }
    host = COMMANDS["kubernetes"][COMMANDS["kubernetes"].index("--metrics-host") + 1]
    assert host == "0.0.0.0", "the kubelet asks from outside of the pod"


def test_the_settings_of_the_config_map_are_settings(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text(manifests()["ConfigMap"]["data"]["tidegate.toml"])
    secrets = {each["name"]: "pl4nted" for each in container()["env"]}
    settings = Settings.load(file, secrets)
    assert settings.ledger.url is not None
    assert settings.kafka.bootstrap is not None
    mounted = [each["mountPath"] for each in container()["volumeMounts"] if each["name"] == "settings"]
    assert mounted == [str(Path(COMMANDS["kubernetes"][COMMANDS["kubernetes"].index("--config") + 1]).parent)]


def test_names_in_the_manifests_agree() -> None:
    every = manifests()
    spec = every["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert every["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    volumes = {each["name"]: each for each in spec["template"]["spec"]["volumes"]}
    assert {each["name"] for each in container()["volumeMounts"]} == set(volumes)
    assert volumes["settings"]["configMap"]["name"] == every["ConfigMap"]["metadata"]["name"]


@pytest.mark.parametrize("file", [UNIT, MANIFESTS], ids=lambda file: str(file.name))
def test_the_page_shows_the_file_as_it_is(file: Path) -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert file.read_text() in blocks
