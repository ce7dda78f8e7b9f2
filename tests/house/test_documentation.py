"""Documentation that cannot rot: what is public is documented, and links lead somewhere."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

import tidegate
from tidegate import Limits

from .sources import ROOT, Source, python_files, read

README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
DOCUMENTS = sorted((ROOT / "docs").rglob("*.md"))
ALL_MARKDOWN = [*sorted(ROOT.glob("*.md")), *DOCUMENTS]

FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^ {4}.*$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)[^)]*\)")


def code_in(text: str) -> str:
    """What a markdown text sets as code: a name counts as documented there, not as a word in a sentence."""
    return "\n".join([*CODE.findall(text), *INDENTED.findall(text)])


def mentions(code: str, name: str) -> bool:
    """Whether `name` stands in `code` as a word of its own, and not as part of a longer one."""
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", code) is not None


def public_modules() -> Iterator[ModuleType]:
    """tidegate and each module directly below it that is not private."""
    yield tidegate
    for module in pkgutil.iter_modules(tidegate.__path__, "tidegate."):
        if not module.name.rpartition(".")[2].startswith("_"):
            yield importlib.import_module(module.name)


def public_names() -> list[tuple[str, str]]:
    """Module and name of everything that a public module offers in `__all__`."""
    return [(module.__name__, name) for module in public_modules() for name in getattr(module, "__all__", [])]


def has_docstring(thing: object) -> bool:
    """Whether a class or function has a docstring of its own; other values cannot carry one."""
    if not inspect.isclass(thing) and not inspect.isroutine(thing):
        return True
    own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    # A dataclass without a docstring is given its signature as one.
    return own is not None and not own.startswith(f"{thing.__name__}(")


def commands_in(source: Source) -> Iterator[str]:
    """The names of the commands that a module of the command line registers: `@app.command("name")`."""
    for function in ast.walk(source.tree):
        if isinstance(function, ast.FunctionDef):
            for decorator in function.decorator_list:
                match decorator:
                    case ast.Call(func=ast.Attribute(attr="command"), args=[ast.Constant(value=str(name)), *_]):
                        yield name
                    case ast.Call(func=ast.Attribute(attr="command")):
                        yield function.name.replace("_", "-")


def settings_in(source: Source) -> Iterator[str]:
    """The names of the settings: the public annotated fields of the classes that are ``Masked``."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef) and "Masked" in {ast.unparse(base) for base in node.bases}:
            for statement in node.body:
                match statement:
                    case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                        yield name


def make_targets(makefile: str) -> list[str]:
    """The targets that `make help` lists."""
    return re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE)


def anchors_in(text: str) -> set[str]:
    """The anchors of a markdown text's headings, as they are rendered on GitHub."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path, text: str) -> Iterator[str]:
    """The relative links in `text` that lead to no file or to no heading."""
    for target in LINK.findall(CODE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = document.parent / path if path else document
        if not file.exists():
            yield f"{document.name}: {target}: no such file"
        elif anchor and anchor not in anchors_in(text if file == document else file.read_text(encoding="utf-8")):
            yield f"{document.name}: {target}: no such heading"


def documented() -> str:
    """All code in README and docs/."""
    return "\n".join(code_in(path.read_text(encoding="utf-8")) for path in [README, *DOCUMENTS])


def test_every_public_name_has_a_docstring() -> None:
    names = public_names()
    assert not [f"{module}.{name}" for module, name in names if not has_docstring(getattr(sys.modules[module], name))]


def test_every_public_name_is_documented() -> None:
    code = documented()
    assert not [f"{module}.{name}" for module, name in public_names() if not mentions(code, name)]


def test_every_command_is_documented() -> None:
    code = documented()
    commands = {name for path in python_files("src/tidegate/cli") for name in commands_in(read(path))}
    assert not sorted(name for name in commands if not mentions(code, name))


def test_every_setting_is_documented() -> None:
    code = documented()
    settings = {*settings_in(read(ROOT / "src/tidegate/settings.py")), *(field.name for field in fields(Limits))}
    assert "on_error" in settings
    assert not sorted(name for name in settings if not mentions(code, name))


def test_every_make_target_is_documented() -> None:
    targets = make_targets((ROOT / "Makefile").read_text())
    code = "\n".join(code_in(path.read_text()) for path in (README, CONTRIBUTING))
    assert targets
    assert not [target for target in targets if not mentions(code, f"make {target}")]


@pytest.mark.parametrize("document", ALL_MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    found = list(broken_links(document, document.read_text(encoding="utf-8")))
    assert not found, "\n".join(found)


def test_a_name_in_prose_or_inside_a_longer_name_is_not_a_mention() -> None:
    assert not mentions(code_in("a Span is a range"), "Span")
    assert not mentions(code_in("`SpanError` and `skip-all`"), "Span")
    assert not mentions(code_in("`skip-all`"), "skip")
    assert mentions(code_in("`Span(0, 5)`"), "Span")
    assert mentions(code_in("So:\n\n    Span(0, 5)\n"), "Span")
    assert mentions(code_in("```python\nfrom tidegate import Span\n```"), "Span")


def test_a_missing_docstring_is_found() -> None:
    from dataclasses import dataclass

    @dataclass
    class Bare:
        start: int

    class Inherits(Source):
        pass

    assert not has_docstring(Bare)
    assert not has_docstring(Inherits)
    assert not has_docstring(lambda: None)
    assert has_docstring(Source)


def test_commands_are_read_from_their_decorators() -> None:
    text = '@app.command("list")\ndef show(): ...\n@positions.command()\ndef skip_to(): ...\n@cache\ndef other(): ...'
    assert list(commands_in(Source("tidegate.cli.positions", text))) == ["list", "skip-to"]


def test_settings_are_the_public_fields() -> None:
    text = "class Settings(Masked):\n    prefix: str = ''\n    _seen: int = 0\n    def load(self): ..."
    assert list(settings_in(Source("tidegate.settings", text))) == ["prefix"]


def test_a_link_to_a_missing_file_or_heading_is_found() -> None:
    text = (
        "# One thing\n[a](nowhere.md) [b](#two) [c](#one-thing) [d](README.md) [e](https://example.org)\n`[f](gone.md)`"
    )
    assert len(list(broken_links(README, text))) == 2
