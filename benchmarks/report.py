"""Figures, and whether they keep their bars."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Report:
    """Prints each figure as it comes, and remembers the bars that were missed."""

    missed: list[str] = field(default_factory=list)

    def heading(self, title: str) -> None:
        print(f"\n{title}\n{'-' * len(title)}", flush=True)

    def figure(self, name: str, value: float, unit: str, *, at_most: float | None = None, detail: str = "") -> None:
        bar = ""
        if at_most is not None:
            kept = value <= at_most
            bar = f"  (bar: at most {at_most:g} {unit}, {'kept' if kept else 'MISSED'})"
            if not kept:
                self.missed.append(f"{name}: {value:.3g} {unit}, bar {at_most:g}")
        print(f"{name:<58} {value:>9.3f} {unit}{bar}{'  ' + detail if detail else ''}", flush=True)
