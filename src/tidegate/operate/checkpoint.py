"""The checkpoint of a query of Structured Streaming: which offsets its batches have, and which batch is in doubt."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

from tidegate.core.arguments import Accepts, Amount, argument
from tidegate.core.records import TopicPartition, check_topic
from tidegate.errors import ChangeRefused, InvalidName

__all__ = ["Checkpoint", "Found"]


class Found(NamedTuple):
    """What another tool has stored: the next offset of each partition, and how far it may have written beyond that.

    ``ends`` is ``None`` if the tool does not record that: it may have written anything up to the end of the log.
    """

    offsets: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int] | None
    title: str
    warnings: tuple[str, ...] = ()


_QUIET = 60.0  # seconds without a change
_HIGHEST = (1 << 63) - 1
_PARTITION = re.compile(r"[0-9]{1,10}")
_VOID = "-"  # a source without an offset so far
_OFFSET_VERSIONS = {"v1", "v2"}
_COMMIT_VERSION = re.compile(r"v\d+")  # nothing of a commit's content is used
_REMOTE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*:/")

_Directory: TypeAlias = Annotated[
    str | Path,
    Accepts("the path of a directory", lambda given: given if isinstance(given, str | Path) and str(given) else None),
]
_Offsets: TypeAlias = dict[TopicPartition, int]
_Sources: TypeAlias = dict[str, _Offsets | None]  # None: not a source of Kafka


class Checkpoint:
    """A checkpoint directory on this machine. It is only read."""

    def __init__(
        self,
        directory: str | Path,
        *,
        stopped: bool = False,
        source: int | None = None,
        without_state: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``stopped``: the user says that the query does not run. ``source`` chooses one of several sources, counted
        from 0. ``without_state`` accepts that the state of the query is left behind."""
        self._directory = _local(argument("directory", _Directory, directory))
        self._stopped: bool = argument("stopped", bool, stopped)
        self._source: int | None = argument("source", Amount | None, source)
        self._without_state: bool = argument("without_state", bool, without_state)
        self._clock = argument("clock", Callable[[], float], clock)

    def check_stopped(self) -> None:
        """Raise :class:`ChangeRefused` if the query may still run."""
        if not self._stopped:
            raise ChangeRefused(
                f"{self._directory}: a checkpoint does not tell whether its query runs; stop the query, and say so "
                "with --stopped"
            )
        age = self._clock() - self._changed_at()
        if age < _QUIET:
            raise ChangeRefused(
                f"{self._directory} was changed {max(0.0, age):.0f} s ago: the query may still run. Stop it, and wait "
                f"until the checkpoint has not changed for {_QUIET:.0f} s"
            )

    def found(self, topics: Collection[str]) -> Found:
        """Return the offsets of the last batch, of ``topics`` or of all; raise if they cannot be carried over."""
        planned, done = self._numbers("offsets"), self._numbers("commits")
        if not planned:
            raise ChangeRefused(
                f"{self._directory} has no batch in offsets/: it is no checkpoint, or its query has not begun"
            )
        last, committed = planned[-1], done[-1] if done else -1
        self._check_numbers(planned, committed)
        self._check_state()
        ends = self._sources(last)
        name = self._chosen(ends)
        end = self._of_topics(ends[name] or {}, topics)
        warnings = tuple(self._left_behind(ends, name))
        title = f"checkpoint {self._directory}, batch {committed}"
        if committed == last:
            self._check_commit(last)
            return Found(end, {}, title, warnings)
        begin = self._sources(last - 1).get(name) if last else self._initial(name)
        begin = {tp: offset for tp, offset in (begin or {}).items() if tp in end}
        for tp, offset in end.items():
            if offset < begin.get(tp, 0):
                raise ChangeRefused(
                    f"{self._directory}/offsets/{last}: batch {last} ends at offset {offset} of {tp}, before it begins "
                    f"({begin[tp]}): the topic was recreated while the query ran. Decide where to begin, and store it "
                    "with `tidegate positions`"
                )
        return Found(begin, end, f"{title} (batch {last} is not committed)", warnings)

    def _numbers(self, name: str) -> list[int]:
        directory = self._directory / name
        try:
            return sorted(int(file.name) for file in directory.iterdir() if file.name.isdecimal())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ChangeRefused(f"{directory} cannot be read: {error.strerror}") from None

    def _check_numbers(self, planned: list[int], committed: int) -> None:
        last = planned[-1]
        if planned != list(range(planned[0], last + 1)):
            raise ChangeRefused(
                f"{self._directory}/offsets lacks batches between {planned[0]} and {last}: the query tracked its "
                "progress asynchronously, so batches may be written that are not in the checkpoint, or files are lost"
            )
        if not last - 1 <= committed <= last or (committed == last - 1 and last and planned[0] == last):
            raise ChangeRefused(
                f"{self._directory}: the last batch is {last} in offsets/ and {'none' if committed < 0 else committed} "
                "in commits/, and they differ by 1 at most in a complete checkpoint; copy it again, all of it"
            )

    def _check_commit(self, number: int) -> None:
        version = self._lines("commits", number)[0]
        if not _COMMIT_VERSION.fullmatch(version):
            raise ChangeRefused(f"{self._directory}/commits/{number} is not complete; copy the checkpoint again")

    def _check_state(self) -> None:
        state = self._directory / "state"
        if self._without_state or not state.is_dir() or not any(state.iterdir()):
            return
        raise ChangeRefused(
            f"{self._directory} has state: sums, windows, joins or keys that the query has seen. Only its offsets can "
            "be carried over, and whatever computes from them begins with no state, so its results would differ. To "
            "keep the state, let the query write with ExactlyOnce; to leave it behind, give --without-state"
        )

    def _changed_at(self) -> float:
        parts = (self._directory / name for name in ("offsets", "commits", "sources"))
        return max((file.stat().st_mtime for part in parts for file in _files(part)), default=0.0)

    def _lines(self, *parts: str | int) -> list[str]:
        file = self._directory.joinpath(*map(str, parts))
        try:
            text = file.read_text(encoding="utf-8").removeprefix("\0")  # Spark writes it before initial offsets
        except (OSError, UnicodeDecodeError) as error:
            raise ChangeRefused(f"{file} cannot be read: {getattr(error, 'strerror', 'it is not text')}") from None
        return text.rstrip("\n").split("\n")

    def _sources(self, number: int) -> _Sources:
        """Return the offsets of each source after a batch."""
        file = self._directory / "offsets" / str(number)
        version, *rest = self._lines("offsets", number)
        lines = rest[1:]  # behind the metadata
        if version not in _OFFSET_VERSIONS or not lines:
            raise ChangeRefused(f"{file} is not complete, or its version is not known; it begins with {version[:20]!r}")
        named = (line.partition(":")[::2] for line in lines) if version == "v2" else enumerate(lines)
        return {str(name): _parsed(offsets.strip(), file) for name, offsets in named}

    def _initial(self, name: str) -> _Offsets | None:
        """Return where the first batch began."""
        version, *lines = self._lines("sources", name, 0)
        if version != "v1" or len(lines) != 1:
            raise ChangeRefused(f"{self._directory}/sources/{name}/0 is not complete; copy the checkpoint again")
        return _parsed(lines[0], self._directory / "sources" / name / "0")

    def _chosen(self, sources: _Sources) -> str:
        ours = {name: offsets for name, offsets in sources.items() if offsets is not None}
        if self._source is not None:
            names = list(sources)
            if not (0 <= self._source < len(names) and names[self._source] in ours):
                raise ChangeRefused(
                    f"{self._directory} has no source {self._source} of Kafka; it has: {self._shown(sources)}"
                )
            return names[self._source]
        if not ours:
            raise ChangeRefused(f"{self._directory}: none of the query's sources is Kafka's: {self._shown(sources)}")
        if len(ours) > 1:
            raise ChangeRefused(
                f"{self._directory} has several sources of Kafka: {self._shown(sources)}. A group has one position in "
                "each partition, and no joins; adopt one after the other with --source N"
            )
        return next(iter(ours))

    def _left_behind(self, sources: _Sources, name: str) -> Iterator[str]:
        chosen = {tp.topic for tp in sources[name] or {}}
        for number, (other, offsets) in enumerate(sources.items()):
            if other == name:
                continue
            if offsets is None:
                yield f"source {number} of the query is not Kafka's: what it has read is not carried over"
            elif shared := chosen & {tp.topic for tp in offsets}:
                yield f"source {number} of the query reads {', '.join(sorted(shared))} too, and is not carried over"
            else:
                yield f"source {number} of the query is not carried over: {_topics(offsets)}"
        if self._without_state and (self._directory / "state").is_dir():
            yield "the state of the query stays behind: sums, windows, joins and seen keys begin anew"

    def _of_topics(self, offsets: _Offsets, topics: Collection[str]) -> _Offsets:
        if missing := sorted(set(topics) - {tp.topic for tp in offsets}):
            raise ChangeRefused(
                f"{self._directory}: the query has no offsets of {', '.join(missing)}; it has: {_topics(offsets)}"
            )
        return {tp: offset for tp, offset in offsets.items() if not topics or tp.topic in topics}

    def _shown(self, sources: _Sources) -> str:
        each = (
            f"{number}: {'not of Kafka' if offsets is None else _topics(offsets)}"
            for number, offsets in enumerate(sources.values())
        )
        return "; ".join(each)


def _local(directory: str | Path) -> Path:
    given = str(directory)
    if _REMOTE.match(given):
        raise ChangeRefused(
            f"{given} is not on this machine: copy the checkpoint into a directory, all of it, once its query has ended"
        )
    path = Path(re.sub(r"^file:(//)?(?=/)", "", given))
    if not path.is_dir():
        raise ChangeRefused(f"{path} is not a directory; name the checkpointLocation of the query")
    return path


def _files(directory: Path) -> Iterator[Path]:
    return (file for file in directory.rglob("*") if file.is_file()) if directory.is_dir() else iter(())


def _topics(offsets: Collection[TopicPartition]) -> str:
    return ", ".join(sorted({tp.topic for tp in offsets})) or "no topic so far"


def _parsed(text: str, file: Path) -> _Offsets | None:
    """Parse the offsets of a source; ``None`` if it is not Kafka's."""
    if text == _VOID:
        return {}
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise ChangeRefused(f"{file} is not complete: the offsets of a source are not JSON") from None
    if not (isinstance(found, dict) and all(isinstance(each, dict) for each in found.values())):
        return None
    offsets: _Offsets = {}
    for topic, partitions in found.items():
        for number, offset in partitions.items():
            if not (_PARTITION.fullmatch(number) and type(offset) is int and 0 <= offset <= _HIGHEST):
                return None
            try:
                offsets[TopicPartition(check_topic(topic), int(number))] = offset
            except InvalidName:
                return None
    return offsets
