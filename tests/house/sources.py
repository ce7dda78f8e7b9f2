"""The repository as the house tests see it: its files, and the modules that a source file imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Import:
    """One imported module or name, absolute, and the line that imports it."""

    name: str
    line: int


@dataclass(frozen=True)
class Source:
    """A Python file: the module it is, and its text."""

    module: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    def imports(self) -> Iterator[Import]:
        """Every import, wherever it stands: in functions, under TYPE_CHECKING, and by `import_module("…")`.

        `from a import b` yields `a.b`, because b may be a module.
        """
        for node in ast.walk(self.tree):
            match node:
                case ast.Import(names=names):
                    for alias in names:
                        yield Import(alias.name, node.lineno)
                case ast.ImportFrom(names=names):
                    for alias in names:
                        base = self._absolute(node)
                        yield Import(base if alias.name == "*" else f"{base}.{alias.name}", node.lineno)
                case ast.Call(
                    func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                    args=[ast.Constant(value=str(name)), *_],
                ):
                    yield Import(name, node.lineno)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.module.split(".")
        package = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*package, node.module] if node.module else package)


def python_files(*folders: str) -> list[Path]:
    """The Python files below the given folders of the repository, those folders that exist."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def read(path: Path) -> Source:
    """The source file at `path`, named as it is imported: src/ is not part of the name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else parts
    is_package = parts[-1] == "__init__"
    return Source(".".join(parts[:-1] if is_package else parts), path.read_text(encoding="utf-8"), is_package)
