"""Protobuf schemas: message types made from the text of a schema and its references, without generated code."""

from __future__ import annotations

import base64
import binascii
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from importlib.resources import files
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import grpc_tools
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.type import date_pb2

from tidegate.core.schemas import Schema
from tidegate.errors import RegistryUnavailable
from tidegate.tables.codec import Mismatched

__all__ = ["MessageTypes", "read_index", "written_index"]

_LONGEST = 200  # bytes of a file's name
_SECONDS = 60.0  # the compiler takes 0.1
_MOST_DEEP = 32  # numbers of an index: levels of nested messages
_MODULES = {
    f"google/{folder}/{name}.proto": f"google.{folder}.{name}_pb2"
    for folder, names in (
        ("protobuf", "any api duration empty field_mask source_context struct timestamp type wrappers descriptor"),
        ("type", "calendar_period color date datetime dayofweek decimal expr fraction interval latlng localized_text"),
        ("type", "money month phone_number postal_address quaternion timeofday"),
    )
    for name in names.split()
}
_TEXTS = {
    "confluent/meta.proto": """
        syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto";
        message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }""",
    "confluent/type/decimal.proto": """
        syntax = "proto3"; package confluent.type;
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }""",
    "confluent/types/decimal.proto": """
        syntax = "proto3"; package confluent.types;
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }""",
}
"""Files that Confluent's registry knows, and that schemas import without a reference: options, and decimals."""


class MessageTypes:
    """The message types of one schema. They live in a pool of their own, since versions of a schema share their names.

    Raises :class:`Mismatched` if the schema is invalid, and :class:`RegistryUnavailable` if the compiler was ended,
    took too long or could not run: that says nothing about the schema, and the next try may succeed.

    ``protoc``, which is part of grpcio-tools, compiles it. It runs in another process, because it writes errors to its
    standard error, and schemas are foreign input.
    """

    def __init__(self, schema: Schema) -> None:
        texts, compiled = _sources(schema)
        main = _descriptor(schema.text)
        name = _MAIN if main is None else main.name
        found = compiled | {file.name: file for file in _compiled(texts, compiled)}
        self._counts_entries = main is not None
        self._file = found[name]
        self._pool = DescriptorPool()
        self._known: dict[tuple[int, ...], type[Message]] = {}
        try:
            _fill(self._pool, name, found)
        except (TypeError, KeyError, ValueError):  # the text of the error is that of a dump
            raise Mismatched(
                "the Protobuf schema cannot be used: its descriptor is invalid, or lacks an import"
            ) from None

    def at(self, index: tuple[int, ...]) -> type[Message]:
        """Return a message type by its index: its number within the file, then within that message, and so on."""
        if index not in self._known:
            names, choice = [self._file.package] if self._file.package else [], list(self._file.message_type)
            for number in index:
                if not 0 <= number < len(choice):
                    raise Mismatched("the index before the message names no message of its schema")
                names.append(choice[number].name)
                choice = self._nested(choice[number])
            self._known[index] = self.named(".".join(names))
        return self._known[index]

    def named(self, name: str) -> type[Message]:
        """Return a message type by its full name; raises :class:`KeyError`."""
        found: type[Message] = GetMessageClass(self._pool.FindMessageTypeByName(name))
        return found

    def index_of(self, name: str) -> tuple[int, ...]:
        """Return the index of a message type by its full name; raises :class:`KeyError` if it is not of this file."""
        return self._indexes[name]

    @cached_property
    def _indexes(self) -> Mapping[str, tuple[int, ...]]:
        prefix = f"{self._file.package}." if self._file.package else ""
        return dict(self._walked(prefix, list(self._file.message_type), ()))

    def _walked(
        self, prefix: str, messages: list[DescriptorProto], index: tuple[int, ...]
    ) -> Iterator[tuple[str, tuple[int, ...]]]:
        for number, message in enumerate(messages):
            yield f"{prefix}{message.name}", (*index, number)
            yield from self._walked(f"{prefix}{message.name}.", self._nested(message), (*index, number))

    def _nested(self, message: DescriptorProto) -> list[DescriptorProto]:
        """Return the nested messages that an index counts.

        Those of maps and groups are no messages in the text of a schema. Writers that register a descriptor count them.
        """
        if self._counts_entries:
            return list(message.nested_type)
        groups = {field.type_name.rpartition(".")[2] for field in message.field if field.type == _GROUP}
        return [each for each in message.nested_type if not each.options.map_entry and each.name not in groups]


_MAIN = "the-schema.proto"
_GROUP = FieldDescriptorProto.TYPE_GROUP


def _sources(schema: Schema) -> tuple[dict[str, str], dict[str, FileDescriptorProto]]:
    """Return the files of a schema by name: those given as text, and those given as descriptors."""
    texts: dict[str, str] = {}
    compiled: dict[str, FileDescriptorProto] = {}
    own = ""  # the name that the schema gives itself
    rest: list[tuple[str | None, Schema]] = [(None, schema)]
    while rest:
        name, each = rest.pop()
        found = _descriptor(each.text)
        if name and name == own:
            raise Mismatched(f"the Protobuf schema refers to {name!r}, which is its own name")
        if found is None:
            texts[_MAIN if name is None else _checked(name)] = each.text
        else:
            own = own if name is not None else found.name
            found.name = own if name is None else _checked(name)
            compiled[found.name] = found
        rest += [(reference.name, reference.schema) for reference in each.references]
    imported = {name for file in compiled.values() for name in file.dependency}
    texts |= {name: text for name, text in _TEXTS.items() if name in imported - texts.keys() - compiled.keys()}
    return texts, compiled


def _descriptor(text: str) -> FileDescriptorProto | None:
    """Return the descriptor that some writers register instead of a text, in base64."""
    try:
        found = FileDescriptorProto.FromString(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    return found if found.name else None


def _checked(name: str) -> str:
    """Return the name of a file, if it lies within the folder of the schema: names are foreign input."""
    path = PurePosixPath(name)
    is_odd = any(character in "\\\0" or not character.isprintable() for character in name)
    is_odd = is_odd or len(name.encode("utf-8", "surrogatepass")) > _LONGEST
    if path == PurePosixPath(_MAIN):
        raise Mismatched(f"the Protobuf schema refers to {name!r}, a name that is reserved")
    if path.is_absolute() or ".." in path.parts or not path.name or is_odd:
        raise Mismatched(f"the Protobuf schema refers to {name!r}, which is no name of a file")
    return name


def _compiled(texts: Mapping[str, str], compiled: Mapping[str, FileDescriptorProto]) -> list[FileDescriptorProto]:
    """Run the compiler on the texts, and return the descriptors of all files."""
    if not texts:
        return []
    known = files(grpc_tools) / "_proto"
    types = Path(date_pb2.__file__).parents[2]
    try:
        with TemporaryDirectory(prefix="tidegate-") as folder:
            return _run(Path(folder), texts, compiled, (known, types))
    except OSError as error:  # such as a full disk
        raise RegistryUnavailable(f"{_NOT_RUN}: {type(error).__name__}") from error


def _run(
    folder: Path, texts: Mapping[str, str], compiled: Mapping[str, FileDescriptorProto], known: Sequence[object]
) -> list[FileDescriptorProto]:
    given = folder / "given"
    for name, text in {**_TEXTS, **texts}.items():
        path = given / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except (FileExistsError, IsADirectoryError, NotADirectoryError):
            raise Mismatched(f"the Protobuf schema refers to {name!r}, and to a file within it") from None
        except UnicodeEncodeError:
            raise Mismatched("the Protobuf schema has half of a surrogate pair in it") from None
    made, before = folder / "made", folder / "before"
    before.write_bytes(FileDescriptorSet(file=compiled.values()).SerializeToString())
    included = [f"-I{path}" for path in (given, *known)]
    options = [f"--descriptor_set_in={before}"] if compiled else []
    command = [*_COMPILER, *included, *options, "--include_imports", f"--descriptor_set_out={made}"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        result = subprocess.run(  # noqa: S603 - names are checked, and no shell reads them
            [*command, *(str(given / name) for name in texts)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            start_new_session=True,  # a signal to the group of this process does not end it in the middle
        )
    except subprocess.TimeoutExpired:
        raise RegistryUnavailable(f"{_NOT_RUN}: it took longer than {_SECONDS:g} seconds") from None
    if result.returncode:
        why = _why(result.stderr, folder, texts) if result.returncode > 0 else None
        if why is None:
            raise RegistryUnavailable(f"{_NOT_RUN}: it ended with {result.returncode}")
        raise Mismatched(f"the Protobuf schema cannot be used: {why}")
    return list(FileDescriptorSet.FromString(made.read_bytes()).file)


_NOT_RUN = "the compiler of Protobuf schemas did not do its work"
_COMPLAINT = re.compile(r":\d+:\d+: |: File not found|: Import ")
# -P: modules are not looked for in the folder with the foreign files.
_COMPILER = [sys.executable, "-P", "-m", "grpc_tools.protoc"]


def _why(errors: bytes, folder: Path, names: Iterable[str]) -> str | None:
    """Return the first complaint about the files; ``None`` if the compiler failed for another reason."""
    lines = str(errors, "utf-8", "replace").replace(f"{folder}/given/", "").splitlines()
    lines = [line for line in lines if "warning:" not in line]
    shown = [line for line in lines if _COMPLAINT.search(line)]
    shown = shown or [line for line in lines if line.startswith(tuple(f"{name}:" for name in names))]
    return shown[0][:300] if shown else None


def _fill(pool: DescriptorPool, name: str, found: Mapping[str, FileDescriptorProto]) -> None:
    """Add a file to the pool, after the files that it imports."""
    file = found.get(name)
    if file is None:
        file = FileDescriptorProto()
        import_module(_MODULES[name]).DESCRIPTOR.CopyToProto(file)
    for imported in file.dependency:
        try:
            pool.FindFileByName(imported)
        except KeyError:
            _fill(pool, imported, found)
    pool.AddSerializedFile(file.SerializeToString())


def read_index(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the index of a message, and where the message itself begins; raises :class:`Mismatched`.

    A single zero stands for the index ``[0]``, the first message of a file.
    """
    if data[:1] == b"\0":
        return (0,), 1
    count, at = _number(data, 0)
    if not 0 < count <= _MOST_DEEP:
        raise Mismatched("the index before the message is none")
    index = []
    for _ in range(count):
        number, at = _number(data, at)
        index.append(number)
    return tuple(index), at


def written_index(index: tuple[int, ...]) -> bytes:
    """Return the bytes of an index."""
    return b"\0" if index == (0,) else b"".join(map(_varint, (len(index), *index)))


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in zigzag encoding, and where the bytes after it begin."""
    found = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        found |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
    raise Mismatched("the index before the message is none")


def _varint(number: int) -> bytes:
    rest, found = number << 1, bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)
