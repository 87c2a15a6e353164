"""A root that somebody else made to do harm: each string that storage gives, replaced in turn.

Files of a root are entries of logs, checkpoints, rows of tables, manifests and lists. A place is a string in one:
``_delta_log/…01.json`` line 2, ``add.path``. Places of one kind, the same string in the same sort of table, are
tried once, in the file that most verbs open. Checksums and sizes are made to fit, as whoever does harm would.

Three things make that cheap. Many places are tried at once first: if every verb ends as on the sound root, after
the same files, findings and warnings, all values were read and did no harm; else each half of them is tried,
down to single places. That is tried with the verbs that touch its queue, the catalog or the statistics on the
sound root, or what such a verb writes; nothing else knows of it. And where all readers refuse a file, as they did
when all verbs were tried, nothing behind them knows more of it than the words with which they do.
"""

from __future__ import annotations

import json
import logging
import random
import re
import shutil
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta, timezone
from functools import cached_property, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from conformance.damage import file_contents, send_to_one_shard
from insides import engine_of, forget
from lakequeue import LakeQueue, Queue, RedrivePolicy
from lakequeue.cli import app
from lakequeue.errors import LakeQueueError
from lakequeue.runtime import home_shard
from lakequeue.storage import layout
from lakequeue.storage.delta_log import LOG, signed
from lakequeue.storage.folder import Folder, LocalFolder, RemoteFolder
from lakequeue.testing import ManualClock

BESIDE = "{beside}"
"""In a value: the path of a file outside of the root."""
VALUES = (
    "../../x",
    "../../../../../beside/x",
    "../../beside",
    f"{BESIDE}/x",
    f"file://{BESIDE}/x",
    "s3://other/x",
    "a\nb",
    "[link=https://example.org][/x]",
    "\x1b]0;title\x07\x1b[2J",
    "y" * 2**20,
    "",
    "a\0b",
    "%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/beside/x",
    "\uff0e\uff0e/\uff0e\uff0e/beside/x",
)

THEIRS = b"mine"
"""Content of files outside of the root."""
LONGEST = 10.0
"""Seconds of this process that a verb may take, whatever storage says; most take milliseconds."""
COMMANDS = get_command(app)

Files = Mapping[str, bytes]
"""Content of each file by its name, below the root."""
_Path = tuple[str | int, ...]


@attrs.frozen
class Place:
    """A string in a file of a root."""

    kind: str
    """In which sort of file, and which string of it: places of one kind are alike."""
    file: str
    """Below the root."""
    path: _Path
    """From the file's content to the string."""


def places(files: Files, opened: Mapping[str, int]) -> list[Place]:
    """A place of each kind, in order of kind, in the file that most verbs open."""
    found = dict[str, Place]()
    for name in sorted(files, key=lambda name: (opened.get(name, 0), name)):
        for path in _strings(_read(name, files[name])):
            kind = f"{_sort(name)} {_sort('.'.join(part for part in path if isinstance(part, str)))}"
            found[kind] = Place(kind, name, path)
    return [found[kind] for kind in sorted(found)]


def poisoned(files: Files, places: Iterable[Place], value: str) -> Files:
    """The files with a value at places; sizes in logs and manifests, and checksums of entries fit."""
    contents = dict[str, Any]()
    for place in places:
        _put(contents.setdefault(place.file, _read(place.file, files[place.file])), place.path, value)
    changed = dict[str, bytes]()
    for name in sorted(contents, key=_names_other_files):
        changed[name] = _written(name, files[name], contents[name])
        for other in () if _names_other_files(name) else filter(_names_other_files, files):
            if _part(other) == _part(name) and (
                other.endswith(".parquet") or Path(name).name.encode() in files[other]
            ):
                content = contents.get(other) or _read(other, files[other])
                if _set_size(content, name, len(changed[name])):
                    contents[other] = content
                    changed[other] = _written(other, files[other], content)
    return {**files, **changed}


def _names_other_files(name: str) -> bool:
    """True if a file names other files: an entry, a checkpoint, a manifest."""
    return f"/{LOG}/" in name or "/manifests/" in name


def _part(name: str) -> str:
    """What a file is a part of: a queue, the catalog, the statistics, or nothing of these."""
    first, _, rest = name.partition("/")
    return f"q/{rest.partition('/')[0]}" if first == "q" else first


def _set_size(content: Any, name: str, size: int) -> bool:
    found = False
    for each in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        found |= _set_size(each, name, size)
    told = content if isinstance(content, dict) else {}
    if {"path", "size"} <= set(told) and name.endswith(f"/{unquote(told['path'])}"):
        told["size"], found = size, True
    return found


def _sort(name: str) -> str:
    """What sort of file has a name: without numbers, and without what only one root has."""
    return re.sub(r"[0-9a-f]{8,}(-[0-9a-f]{4,})*|\d+", "N", re.sub("^q/[^/]+", "q", name))


def _read(name: str, data: bytes) -> Any:
    """The content of a file as lists, dictionaries and values; nothing of what has no strings."""
    if name.endswith(".parquet"):
        return pq.ParquetFile(pa.BufferReader(data)).read().to_pylist(maps_as_pydicts="strict")
    try:
        return [json.loads(line) for line in data.decode().splitlines()]
    except ValueError:
        return []


def _written(name: str, before: bytes, content: Any) -> bytes:
    if name.endswith(".parquet"):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(content, pq.read_schema(pa.BufferReader(before))), sink)
        return bytes(sink.getvalue())
    data = "\n".join(map(json.dumps, content)).encode()
    first = content[0].get("commitInfo", {}) if isinstance(content[0], dict) else {}
    return signed(data) if len(first.get("operationMetrics", {}).get("checksum", "")) == 8 else data


def _strings(found: Any, path: _Path = ()) -> Iterator[_Path]:
    if isinstance(found, str):
        yield path
    elif isinstance(found, (list, dict)):
        for key, each in found.items() if isinstance(found, dict) else enumerate(found):
            yield from _strings(each, (*path, key))


def _put(content: Any, path: _Path, value: str) -> None:
    for part in path[:-1]:
        content = content[part]
    content[path[-1]] = value
    if path[-1] == "path" and "size" in content:
        content["size"] = len(THEIRS)  # as of what hostile names lead to


def make(root: Path, clock: ManualClock) -> None:
    """A root with every sort of file: of two shards, messages in every state, a bulk send that was killed.

    What the catalog and two queues have in checkpoints, the third one has in entries that are read.
    """
    lake = LakeQueue(str(root), clock=clock, engine="point")
    parked = lake.create_queue("parked")
    queue = lake.create_queue("orders", shards=2, rewind_range=3_600, tags={"team": "a"})
    queue.set_attributes(redrive_policy=RedrivePolicy("parked", 1))
    letters = lake.create_queue("letters.fifo", fifo=True, content_based_deduplication=True)
    for number in range(6):
        queue.send(f"m{number}", attributes={"kind": "small"})
        letters.send(f"l{number}", group_id=f"g{number % 2}")
    queue.send_arrow(pa.table({"body": ["a", "b", "c"]}), send_id="s0")
    queue.delete_batch(queue.receive(3)).raise_for_failures()
    letters.receive(1, attempt_id="once")
    queue.receive(2, visibility_timeout=1)
    lake.compact()
    clock.advance(2)
    queue.receive(1)  # and two dead letters
    parked.receive(1)
    send_to_one_shard(queue, pa.table({"body": list(map(str, range(400)))}))
    engine = engine_of(lake)
    paths = [layout.queues_path(lake.root)]
    for each in (queue, letters):
        paths += [path(lake.root, each.key, 0) for path in (layout.messages_path, layout.receipts_path)]
    for path in paths:
        engine.open(path).checkpoint()
    for each in (queue, letters, parked):
        each.send("the last", **({"group_id": "g0"} if each is letters else {}))
        each.delete_batch(each.receive(1)).raise_for_failures()
        each.set_attributes(visibility_timeout=40)
    lake.schedules.add("nightly", "orders", "x", cron="0 2 * * *", tz="Europe/Berlin")
    lake.schedules.add("once", "letters.fifo", "x", at=clock.now(), group_id="g1")
    lake.schedules.run_due()
    for name in ("orders", "letters.fifo", "parked"):
        lake.queue(name).tags()


def made_beside(above: Path) -> Path:
    """What no verb on a root may touch: files at names to which hostile values lead."""
    beside = above / "beside"
    for name in ("x", "0/messages/_delta_log/00000000000000000000.json", "empty/0/receipts/a.parquet"):
        (beside / name).parent.mkdir(parents=True, exist_ok=True)
        (beside / name).write_bytes(THEIRS)
    return beside


def verbs(lake: LakeQueue, copy: LakeQueue) -> Iterator[tuple[str, Callable[[], object]]]:
    """Everything that Python does with a root: first what reads, then what writes, then what removes."""

    def of(name: str, call: Callable[[Queue], object]) -> Callable[[], object]:
        return lambda: call(lake.queue(name))

    yield "list_queues", lake.list_queues
    yield "check", lake.check
    yield "repairs", lake.repair
    yield "arrow_views", lambda: [view.to_table() for view in lake.arrow_views().values()]
    yield "copy", lambda: lake.copy(copy)
    yield "schedules", lake.schedules.list
    for name in ("orders", "letters.fifo", "parked"):
        for verb in ("counts", "shard_counts", "groups", "attributes", "peek", "tags", "dead_letter_sources"):
            yield f"{name}.{verb}", of(name, lambda queue, verb=verb: getattr(queue, verb)())  # type: ignore[misc]
        yield f"{name}.rewindable", of(name, lambda queue: queue.rewindable(queue.created_at))
        group = {"group_id": "g0"} if name == "letters.fifo" else {}
        yield f"{name}.send", of(name, lambda queue, group=group: queue.send("x", **group))  # type: ignore[misc]
        yield f"{name}.send_arrow", of(name, lambda queue: queue.send_arrow(pa.table({"body": ["x"]})))
        yield f"{name}.receive", of(name, lambda queue: queue.delete_batch(queue.receive(10, wait_time=0)))
        yield f"{name}.lease", of(name, _leased)
        yield f"{name}.rewind", of(name, lambda queue: queue.rewind(queue.created_at))
        yield f"{name}.erase", of(name, lambda queue: queue.erase(queue.peek()[0].message_id))
        yield f"{name}.set", of(name, lambda queue: queue.set_attributes(visibility_timeout=7))
    yield "parked.redrive", of("parked", lambda queue: queue.redrive())
    yield "upgrade", lake.upgrade
    yield "compact", lake.compact
    yield "repair", lambda: lake.repair(apply=True)
    yield "run_due", lake.schedules.run_due
    yield "pause", lambda: lake.schedules.pause("nightly")
    yield "create", lambda: lake.create_queue("more").send("x")
    yield "purge", of("orders", lambda queue: queue.purge())
    for name in ("orders", "letters.fifo", "parked"):
        yield f"delete {name}", lambda name=name: lake.delete_queue(name)  # type: ignore[misc]
    yield "sweep", lake.compact


def _leased(queue: Queue) -> None:
    if (lease := queue.lease()) is not None:
        lease.arrow()
        lease.release()


def commands(root: str, copy: str) -> list[list[str]]:
    """What the command line does with a root."""
    with_queue = ["show", "counts", "peek", "export", "send", "receive", "purge", "delete-queue"]
    return [
        *([each] for each in ("list", "counts", "check", "doctor", "views")),
        ["sql", "SELECT * FROM queues"],
        ["sql", "SELECT * FROM messages"],
        ["schedule", "list"],
        ["copy", root, copy],
        *([each, "orders", *{"send": ["x"], "purge": ["--yes"]}.get(each, [])] for each in with_queue[:-1]),
        ["repair", "--all", "--yes"],
        ["compact"],
        ["delete-queue", "orders", "--yes"],
    ]


@attrs.frozen
class Seen:
    """What a verb did, and what is wrong with that."""

    ended: tuple[object, ...]
    """Its error, how many lines and findings it told, how many warnings it logged."""
    opened: frozenset[str]
    touched: frozenset[str]
    """Parts of the root that it looked at in any way."""
    wrote: frozenset[str]
    """Parts of the root of which it wrote or removed files."""
    wrong: str = ""

    def is_as(self, other: Seen) -> bool:
        """Whether it ended as another one, after the same files."""
        return (self.ended, self.opened) == (other.ended, other.opened)


class _Watch:
    """What goes on below a root while a verb runs."""

    def __init__(self, root: str, files: Files) -> None:
        self._root, self._files = f"{root}/", files
        self.opened, self.touched, self.wrote, self.warnings = set[str](), set[str](), set[str](), 0

    def filter(self, record: logging.LogRecord) -> bool:
        self.warnings += record.levelno >= logging.WARNING
        return True

    def _see(self, method: str, folder: Folder, name: object) -> None:
        path = f"{folder.uri}/{name if isinstance(name, str) else ''}"
        if not path.startswith(self._root):
            return
        name = path.removeprefix(self._root).strip("/")
        self.touched.add(_part(name))
        if method in _WRITING:
            self.wrote.add(_part(name))
        elif method in _OPENING and name in self._files:
            self.opened.add(name)

    @contextmanager
    def watching(self) -> Iterator[None]:
        logger = logging.getLogger("lakequeue")
        logger.addFilter(self)
        with pytest.MonkeyPatch.context() as patch:
            for kind in LocalFolder, RemoteFolder:
                for method in {"path", "_at", *_OPENING, *_WRITING} & set(dir(kind)):
                    patch.setattr(kind, method, self._watched(method, getattr(kind, method)))
            patch.setattr(home_shard, "random", SimpleNamespace(Random=lambda: random.Random(0)))
            try:
                yield
            finally:
                logger.removeFilter(self)

    def _watched(self, method: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def watched(folder: Folder, *given: Any, **more: Any) -> Any:
            self._see(method, folder, given[0] if given else "")
            return call(folder, *given, **more)

        return watched


_OPENING = ("read_marked", "open", "parquet")
_WRITING = ("create", "replace", "write", "writer", "move", "remove", "remove_empty", "remove_all")


@attrs.frozen
class Attacked:
    """A root in storage, to be used up by verbs."""

    root: str
    copy: str
    files: Files
    outside: Callable[[], object]
    """Returns the state of the files next to the root."""

    def python(self, now: datetime, chosen: Container[str], cold: bool) -> Iterator[tuple[str, Seen]]:
        """The verbs of Python, in one process, or each in one that knows nothing."""
        clock = ManualClock(now)

        def started() -> Iterator[tuple[str, Callable[[], object]]]:
            forget()
            return verbs(*(LakeQueue(each, clock=clock, engine="point") for each in (self.root, self.copy)))

        for number, (name, verb) in enumerate(started()):
            if name in chosen:
                yield name, self._seen(list(started())[number][1] if cold else verb)

    def command_line(self, _now: datetime, chosen: Container[str], _cold: bool) -> Iterator[tuple[str, Seen]]:
        """The commands, each as in a process of its own."""
        for arguments in commands(self.root, self.copy):
            name = "lakequeue " + " ".join(each for each in arguments if "/" not in each)
            if name in chosen:
                forget()
                yield name, self._seen(lambda arguments=arguments: self._run(arguments))  # type: ignore[misc]

    def _run(self, arguments: list[str]) -> tuple[object, ...]:
        code: object = 0
        with CliRunner().isolation() as (out, err, _):
            try:
                COMMANDS.main(args=["--root", self.root, *arguments], prog_name="lakequeue")
            except SystemExit as ended:
                code = ended.code
            stdout, stderr = out.getvalue().decode(), err.getvalue().decode()
        assert not (found := _OBEYED.search(stdout + stderr)), (stdout + stderr)[found.start() - 100 :][:300]
        return code, code and len(stdout.splitlines()), stderr if code else ""

    def _seen(self, verb: Callable[[], object]) -> Seen:
        watch, before = _Watch(self.root, self.files), self.outside()
        begun, wrong, error, result = time.process_time(), "", "", None
        try:
            with warnings.catch_warnings(), watch.watching():
                warnings.simplefilter("ignore")
                result = verb()
        except LakeQueueError as raised:
            error = type(raised).__name__
            if len(str(raised)) > 4_000 or not str(raised).isprintable():
                wrong = f"says {str(raised)[:300]!r}"
        except Exception as raised:
            error = type(raised).__name__
            wrong = f"raises {error}: {str(raised)[:300]!r}"
        if time.process_time() - begun > LONGEST:
            wrong = f"takes {time.process_time() - begun:.0f} s"
        if self.outside() != before:
            wrong = "changes what is beside the root"
        counted: object = len(result) if isinstance(result, Sized) else None
        if isinstance(result, tuple):
            counted, stderr = result[:-1], result[-1]
            if len(stderr.splitlines()) > 1 + watch.warnings:  # a failed step of a pass is a line of its own
                wrong = f"says {stderr[:600]!r}"
        ended = (error, counted, watch.warnings)
        return Seen(ended, *map(frozenset, (watch.opened, watch.touched, watch.wrote)), wrong)


Way = Callable[..., Iterator[tuple[str, Seen]]]
BOTH: Sequence[Way] = (Attacked.python, Attacked.command_line)
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


_Refusal = tuple[tuple[object, ...], ...]
_READER = re.compile(r"^check|^copy|\.counts|\.receive|lakequeue (check|counts$|doctor)")
"""Verbs that read every table between them, in every way in which one is read."""
_ODD = re.compile(r"[^!-Z\\^-~]")


_Put = Callable[[int, Callable[[str], Files]], AbstractContextManager[Attacked]]


class _All:
    def __contains__(self, name: object) -> bool:
        return True


class Hostile:
    """A root with every sort of file, and the verbs on copies of it that were given values."""

    def __init__(self, made: Path, put: _Put) -> None:
        """Of a root that is made in a new directory; ``put`` puts copies where verbs find them."""
        clock = ManualClock(datetime.now(timezone.utc) - timedelta(minutes=1))
        make(made, clock)
        clock.advance(10)
        self.now = clock.now()
        self.files: Files = {
            str(each.relative_to(made)): each.read_bytes() for each in made.rglob("*") if each.is_file()
        }
        self.trials = 0
        self._put = put
        self._harmful = set[str]()
        """Kinds of places at which a value was refused."""
        self._refusals = defaultdict[str, set[_Refusal]](set)
        self._sound = dict[tuple[Way, frozenset[str]], Mapping[str, Seen]]()

    def wrong(self, places: Iterable[Place], value: str, ways: Sequence[Way] = BOTH) -> list[str]:
        """What is wrong with the verbs on copies, each with a value at one of the places."""
        found, together = list[str](), list[Place]()
        for place in places:
            if place.kind in self._harmful and (refusal := self._refusal(place, value)):
                found += self._refused(place, value, ways, refusal)
            else:
                together.append(place)
        sound = list[Place]()
        for group in _groups(together, 12 if len(value) > 1_000 else len(together)):
            found += self._halves(group, value, ways, sound)
        return found + self._halves(sound, value, ways, None)

    def _halves(
        self, places: Sequence[Place], value: str, ways: Sequence[Way], sound: list[Place] | None
    ) -> list[str]:
        """What is wrong; places at which only their neighbours were refused are added to ``sound``."""
        if len(places) == 1:
            refusal = self._refusal(places[0], value)
            if not refusal and sound is not None:
                sound.append(places[0])
                return []
            self._harmful.add(places[0].kind)
            return self._refused(places[0], value, ways, refusal)
        if not places or all(self._is_usual(way, places, value) for way in ways):
            return []
        half = len(places) // 2
        first, second = places[:half], places[half:]
        return [*self._halves(first, value, ways, sound), *self._halves(second, value, ways, sound)]

    def _refusal(self, place: Place, value: str) -> _Refusal:
        """How readers refuse a value; empty: none does."""
        found = list[tuple[object, ...]]()
        # what is no plain text may be printed wrongly
        for way in BOTH if _ODD.search(value) else BOTH[:1]:
            chosen = frozenset(name for name in self._concerned(way, place) if _READER.search(name))
            if (way, chosen) not in self._sound:
                self._sound[way, chosen] = dict(self._tried(way, [], "", chosen))
            sound, refused = self._sound[way, chosen], set[str]()
            for name, seen in self._tried(way, [place], value, chosen):
                if seen.wrong or not seen.is_as(sound[name]):
                    found.append((name, seen.wrong, seen.ended, seen.opened))
                    refused.add(name)
            if refused and not {name for name in chosen if place.file in sound[name].opened} <= refused:
                found.append((place.kind, value))  # some use it nevertheless
        return tuple(found)

    def _refused(self, place: Place, value: str, ways: Sequence[Way], refusal: _Refusal) -> list[str]:
        """What is wrong with all verbs; they are not run again for a file that is refused as before."""
        if refusal and refusal in self._refusals[place.file]:
            return []
        found = [each for way in ways for each in self.alone(place, value, [way], self._concerned(way, place))]
        if not found:
            self._refusals[place.file].add(refusal)
        return found

    def _is_usual(self, way: Way, places: Sequence[Place], value: str) -> bool:
        usual = self._usual[way]
        return all(
            not seen.wrong and seen.is_as(usual[name]) for name, seen in self._tried(way, places, value, _All())
        )

    def alone(
        self, place: Place, value: str, ways: Sequence[Way] = BOTH, chosen: Container[str] | None = None
    ) -> list[str]:
        """What is wrong with verbs, all by default, on copies with a value at one place."""
        return [
            f"{place.kind} = {value[:60]!r}: {name} {seen.wrong}"
            for way in ways
            for name, seen in self._tried(way, [place], value, _All() if chosen is None else chosen)
            if seen.wrong
        ]

    def _tried(
        self, way: Way, places: Sequence[Place], value: str, chosen: Container[str], cold: bool = False
    ) -> Iterator[tuple[str, Seen]]:
        self.trials += 1
        # each in a place of its own, as what this process knows of another must not hide it
        with self._put(
            self.trials, lambda beside: poisoned(self.files, places, value.replace(BESIDE, beside))
        ) as attacked:
            yield from way(attacked, self.now, chosen, cold)

    def _concerned(self, way: Way, place: Place) -> set[str]:
        """Verbs that touch the part of the root that a place is in, or what such a verb wrote."""
        parts, concerned = {_part(place.file)}, set[str]()
        for name, seen in self._cold[way].items():
            if not parts.isdisjoint(seen.touched):
                concerned.add(name)
                parts |= seen.wrote
                if seen.wrote & {"", "q/"}:
                    parts |= set(map(_part, self.files))
        return concerned

    @cached_property
    def places(self) -> list[Place]:
        """Of each kind."""
        usual = [seen for each in self._usual.values() for seen in each.values()]
        return places(self.files, Counter(name for seen in usual for name in seen.opened))

    @cached_property
    def _usual(self) -> Mapping[Way, Mapping[str, Seen]]:
        return {way: dict(self._tried(way, [], "", _All())) for way in BOTH}

    @cached_property
    def _cold(self) -> Mapping[Way, Mapping[str, Seen]]:
        return {way: dict(self._tried(way, [], "", _All(), cold=True)) for way in BOTH}


def on_disk(folder: Path) -> Hostile:
    """A hostile root in a directory, and what is beside it."""

    @contextmanager
    def put(number: int, made: Callable[[str], Files]) -> Iterator[Attacked]:
        above = folder / str(number)
        beside, root = made_beside(above), above / "root"
        files = made(str(beside))
        root.mkdir(0o700)
        for each in {(root / name).parent for name in files}:
            each.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (root / name).write_bytes(data)
        yield Attacked(str(root), str(above / "copy"), files, lambda: file_contents(beside))
        shutil.rmtree(above)

    return Hostile(folder / "made" / "root", put)


def _groups(places: Iterable[Place], most: int) -> Iterator[list[Place]]:
    """Places that are tried at once: where damage is not shown, one of each file, as it may hide the others."""
    groups, number = defaultdict[object, list[Place]](list), Counter[str]()
    for place in places:
        key = f"all {number[''] // most}" if _shows_damage(place.file) else f"{number[place.file]} of each file"
        number["" if _shows_damage(place.file) else place.file] += 1
        groups[key].append(place)
    yield from groups.values()


def _shows_damage(name: str) -> bool:
    """Whether a file that is refused is told by errors, findings, warnings, or other files that are opened."""
    return name.endswith(".parquet") or f"/{LOG}/" in name
