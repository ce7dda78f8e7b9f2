"""Figures, and whether they keep their bars."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Report:
    """Prints each figure as it comes, and remembers the bars that were missed."""

    missed: list[str] = field(default_factory=list)

    def heading(self, title: str) -> None:
        print(f"\n{title}\n{'-' * len(title)}", flush=True)

    def figure(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        detail: str = "",
    ) -> None:
        bar = ""
        for limit, kept, word in (
            (at_most, at_most is not None and value <= at_most, "at most"),
            (at_least, at_least is not None and value >= at_least, "at least"),
        ):
            if limit is not None:
                bar = f"  (bar: {word} {limit:g} {unit}, {'kept' if kept else 'MISSED'})"
                if not kept:
                    self.missed.append(f"{name}: {value:.3g} {unit}, bar {limit:g}")
        print(f"{name:<58} {value:>9.3f} {unit}{bar}{'  ' + detail if detail else ''}", flush=True)
