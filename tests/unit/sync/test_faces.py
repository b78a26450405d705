"""The blocking API says what the async one says: each verb has the same arguments, hands on each of
them, and gives back what comes back; each property is the one of its own name."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from dlog.admin.admin import Admin as AioAdmin
from dlog.groups.group import Group as AioGroup
from dlog.groups.worker import Worker as AioWorker
from dlog.reader.reader import Reader as AioReader
from dlog.standby.standby import Standby as AioStandby
from dlog.streams.config.config import Config as AioConfig
from dlog.streams.config.hot import HotConfig as AioHotConfig
from dlog.streams.reader import StreamReader as AioStreamReader
from dlog.streams.stream import Stream as AioStream
from dlog.streams.writer import StreamWriter as AioStreamWriter
from dlog.sync.client import Admin
from dlog.sync.config import Config, HotConfig
from dlog.sync.groups import Group, Worker
from dlog.sync.portal import Portal
from dlog.sync.reader import Reader
from dlog.sync.standby import Standby
from dlog.sync.streams import Stream, StreamReader, StreamWriter
from dlog.sync.writer import Writer
from dlog.writer.writer import Writer as AioWriter

PAIRS: list[tuple[type, type]] = [
    (Admin, AioAdmin),
    (Group, AioGroup),
    (Worker, AioWorker),
    (Stream, AioStream),
    (StreamReader, AioStreamReader),
    (StreamWriter, AioStreamWriter),
    (Config, AioConfig),
    (HotConfig, AioHotConfig),
    (Reader, AioReader),
    (Standby, AioStandby),
    (Writer, AioWriter),
]


def public(kind: type, wanted: Any) -> list[str]:
    return [
        name
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_") and wanted(member)
    ]


def arguments(verb: Any) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(verb).parameters.values()]


ONLY_BLOCKING = {"forget", "drop"}  # in the child of a fork, and for who is not closed
OTHERWISE = {  # what they do besides is told by tests of the API
    "own",
    "close",
    "abort",
    "open_writer",
    "open_reader",
    "follow",
    "open_segment",
    *ONLY_BLOCKING,
}
HANDING_ON: list[tuple[type, type, list[str]]] = [
    (Admin, AioAdmin, [n for n in public(Admin, inspect.isfunction) if n not in OTHERWISE]),
    (Group, AioGroup, public(Group, inspect.isfunction)),
    (Worker, AioWorker, ["resume", "wait", "why"]),
    (Stream, AioStream, [n for n in public(Stream, inspect.isfunction) if n not in OTHERWISE]),
    (StreamReader, AioStreamReader, ["lag", "skip", "why"]),
    (Config, AioConfig, [n for n in public(Config, inspect.isfunction) if n not in OTHERWISE]),
    (HotConfig, AioHotConfig, ["status", "why", "add", "drop", "wait_for"]),
    (Reader, AioReader, ["seek", "skip", "lag", "tail", "why"]),
]
PROPERTIES: list[tuple[type, type, list[str]]] = [
    (Group, AioGroup, ["name", "stream"]),
    (Worker, AioWorker, ["failed", "group", "id", "name", "options", "shards", "stream"]),
    (Stream, AioStream, ["name"]),
    (StreamReader, AioStreamReader, ["at_tail", "late", "position", "shards", "stream", "version"]),
    (HotConfig, AioHotConfig, ["current", "version"]),
    (Reader, AioReader, ["at_tail", "log", "options", "position"]),
]
VERBS = [(sync, aio, name) for sync, aio, names in HANDING_ON for name in names]


class Inner:
    """Notes what is asked of it, and has an answer of its own for each verb and property."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.closed = self._closed = False
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.answers: dict[str, object] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        answer = self.answers.setdefault(name, object())
        member = inspect.getattr_static(self.kind, name, None)
        if isinstance(member, property) or not callable(member):
            return answer

        def note(*args: Any, **named: Any) -> object:
            self.calls.append((name, args, named))
            return answer

        async def note_later(*args: Any, **named: Any) -> object:
            return note(*args, **named)

        return note_later if inspect.iscoroutinefunction(member) else note


@pytest.fixture(scope="module")
def portal() -> Iterator[Portal]:
    found = Portal()
    yield found
    found.stop()


@pytest.mark.parametrize(("sync", "aio"), PAIRS, ids=lambda each: each.__name__)
def test_each_verb_has_the_same_arguments_and_defaults(sync: type, aio: type) -> None:
    verbs = [name for name in public(sync, inspect.isfunction) if name not in ONLY_BLOCKING]
    for name in verbs:
        assert arguments(getattr(sync, name)) == arguments(getattr(aio, name)), name


def _given(verb: Any) -> tuple[list[Any], dict[str, Any]]:
    """Another value for each parameter, none of which is its default."""
    args: list[Any] = []
    named: dict[str, Any] = {}
    parameters = list(inspect.signature(verb).parameters.values())[1:]
    for number, parameter in enumerate(parameters):
        value = f"the {number}th"
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += [value, f"{value} again"]
        elif parameter.kind is parameter.VAR_KEYWORD:
            named["whatever"] = value
        elif parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        else:
            args.append(value)
    return args, named


@pytest.mark.parametrize(
    ("sync", "aio", "name"), VERBS, ids=[f"{sync.__name__}.{name}" for sync, _, name in VERBS]
)
def test_a_verb_hands_on_each_argument_and_gives_back_what_comes(
    portal: Portal, sync: Any, aio: type, name: str
) -> None:
    inner = Inner(aio)
    made = sync(inner, portal)
    args, named = _given(getattr(sync, name))
    told = getattr(made, name)(*args, **named)
    ((verb, handed, handed_by_name),) = inner.calls
    assert verb == name
    bind = inspect.signature(getattr(aio, name)).bind
    expected = bind(inner, *args, **named).arguments
    assert bind(inner, *handed, **handed_by_name).arguments == expected
    says_nothing = inspect.signature(getattr(sync, name)).return_annotation == "None"
    assert told is (None if says_nothing else inner.answers[name])
    made._closed = True  # nobody is to be told that it was dropped


@pytest.mark.parametrize(("sync", "aio", "names"), PROPERTIES)
def test_each_property_is_the_one_of_its_name(
    portal: Portal, sync: Any, aio: type, names: list[str]
) -> None:
    inner = Inner(aio)
    made = sync(inner, portal)
    for name in names:
        assert getattr(made, name) is getattr(inner, name)
    made._closed = True
