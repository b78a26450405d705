"""What people and programs type or pipe in: messages as lines of JSON, times, spans, sizes,
headers; and names of ZooKeeper's nodes, of which other clients make any. What is wrong with such
text is told by a `ValueError`, which the command line shows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from dlog.cli.message_input import json_line, parse_header
from dlog.cli.moments import moment_text, parse_moment, parse_size, parse_span, size_text
from dlog.clock import datetime_us
from dlog.meta.zookeeper_names import from_wire, name_from_wire, split_hosts, to_wire
from tests.fuzz.mutation import Mutator
from tests.fuzz.target import Target, require

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Typed(Target):
    """The first byte of an input says what it is."""

    name = "typed"
    refusals = (ValueError,)
    memory_factor = 64.0  # JSON as Python objects
    dictionary = (
        b'"value_base64":"AA=="',
        b'"headers":{"a":{"base64":"AA=="}}',
        b'"headers":[["a","b"]]',
        b'"event_time":"0001-01-01T00:00:00+23:59"',
        b'"event_time":"9999-12-31T23:59:59-23:59"',
        b'"event_time_us":1',
        b"[" * 1200,
        b"9" * 400,
        b"9" * 5000,
        b"\\ud800",
        b"null",
        b"1e999",
        b"NaN",
        b"1h",
        b"30m",
        b"1.5",
        b"T12:00",
        b"+00:00",
        b"Z",
        b"KiB",
        b"0001-01-01",
        b"9999-12-31",
        "\u241b41;".encode(),
        "\u241b110000;".encode(),
        "\U0001f600".encode(),
        "\u0663".encode(),
        b"[::1]:2181",
    )

    def seeds(self) -> list[bytes]:
        return [
            b'\0{"value":"paid","key":"42","headers":{"by":"web"},"event_time_us":5}',
            b'\0{"value_base64":"AAE=","headers":[["a","b"],["a",{"base64":"AA=="}]]}',
            b'\0{"value":null,"event_time":"2025-03-01T12:00:00Z","seq":3}',
            b"\1name=value=more",
            b"\0021.5MiB",
            b"\00264K",
            b"\0031h30m",
            b"\0032d",
            b"\0042025-03-01T12:00+01:00",
            b"\0041h",
            b"\5/a/b",
            "\5/a\u241b/\U0001f600".encode(),
            b"\6h1:2181,h2/root",
        ]

    def mutate(self, mutator: Mutator, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        if raw[:1] == b"\0" and mutator.random() < 0.5:
            return b"\0" + mutator.mutate_json(raw[1:])
        return mutator.mutate(raw, corpus)

    def check(self, raw: bytes) -> str:
        kind = raw[0] % 7 if raw else 0
        text = raw[1:].decode("utf-8", "surrogateescape")
        if kind == 0:
            draft = json_line(raw[1:])
            for each in (draft.value, draft.key):
                require(each is None or isinstance(each, bytes), "bytes or nothing", draft)
            require(all(isinstance(v, bytes) for _, v in draft.headers), "headers", draft)
            require(draft.event_time_us is None or type(draft.event_time_us) is int, "a time")
            return "message"
        if kind == 1:
            name, value = parse_header(text)
            require(text == f"{name}={value.decode('utf-8', 'surrogateescape')}", "a header", text)
            return "header"
        if kind == 2:
            size = parse_size(text)
            require(size >= 0 and bool(size_text(size)), "a size", size)
            return "size"
        if kind == 3:
            require(parse_span(text).total_seconds() >= 0, "a span", text)
            return "span"
        if kind == 4:
            moment = parse_moment(text, _NOW)
            require(moment.tzinfo is not None, "a moment has a zone", moment)
            require(bool(moment_text(datetime_us(moment))), "it can be shown", moment)
            return "moment"
        if kind == 5:
            require(from_wire("", to_wire("", text)) == text, "there and back", text)
            require(from_wire("/x", to_wire("/x", text)) == text or text == "/", "below", text)
            require(isinstance(name_from_wire(text), str), "a name", text)
            return "name"
        hosts, chroot = split_hosts(text)
        require(bool(hosts) and not chroot.endswith("/"), "hosts", hosts, chroot)
        return "hosts"


TARGETS = (Typed(),)
