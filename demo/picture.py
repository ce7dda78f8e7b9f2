"""The picture: rows in the table over time, with the kills marked, for each delivery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter

from demo.audit import Audit
from demo.trial import Trial
from tidegate import Delivery

_COLOURS = {
    Delivery.EXACTLY_ONCE: "#0b7a75",
    Delivery.AT_LEAST_ONCE: "#b8860b",
    Delivery.AT_MOST_ONCE: "#a23b3b",
}
_INK, _FAINT = "#333333", "#999999"


def draw(trials: list[Trial], audits: list[Audit], file: Path) -> None:
    """Draw them side by side, on the same scales, into a PNG."""
    figure, axes = pyplot.subplots(1, len(trials), figsize=(13, 4.2), sharex=True, sharey=True, layout="constrained")
    for axis, trial, found in zip(axes, trials, audits, strict=True):
        _panel(axis, trial, found)
    axes[0].set_ylim(0, 1.06 * max(audits[0].produced.count, *(each.rows for each in audits)))
    axes[0].set_ylabel("rows in the table", color=_INK)
    axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    figure.suptitle(
        f"{audits[0].produced.count:,} orders, and a driver that is killed {len(trials[0].kills)} times", color=_INK
    )
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _panel(axis: Any, trial: Trial, found: Audit) -> None:
    colour = _COLOURS[trial.delivery]
    samples = [sample for sample in trial.watch.samples if sample.at <= trial.seconds]
    axis.axhline(found.produced.count, color=_FAINT, linewidth=1, linestyle=(0, (4, 3)))
    axis.step([each.at for each in samples], [each.rows for each in samples], where="post", color=colour, linewidth=1.8)
    for kill in trial.kills:
        axis.axvline(kill.at, color=_FAINT, linewidth=0.8, alpha=0.6)
        axis.plot(
            kill.at,
            kill.rows,
            marker="X",
            markersize=9,
            color=_INK if kill.aimed else "white",
            markeredgecolor=_INK,
            linestyle="none",
        )
    axis.set_title(f"{trial.delivery.value}\n{_outcome(found)}", fontsize=11, color=colour)
    axis.set_xlabel("seconds   ✕ kill -9 (filled: aimed)".replace("✕", "x"), color=_INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(colors=_INK)


def _outcome(found: Audit) -> str:
    if found.exact:
        return "every order once"
    parts = [f"{found.lost:,} lost" if found.lost else "", f"{found.twice:,} twice" if found.twice else ""]
    return ", ".join(filter(None, parts)) or "another sum"
