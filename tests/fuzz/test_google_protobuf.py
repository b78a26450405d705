"""Protobuf's own Python library and our reader, given the same bytes. It is no dependency of ours,
so where it is not installed this is skipped; `tests.fuzz.reference` stands in for it always.

What both read, both read alike. We refuse more: a known field of another type, numbers that it
would cut off, nesting that nobody sends. It refuses more in one place: a tag of more bytes than any
needs.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from dlog.errors import Corrupt, FormatError
from dlog.wire.protobuf import Message
from tests.fuzz.campaign import Campaign
from tests.fuzz.reference import BYTES
from tests.fuzz.registry import TARGETS
from tests.fuzz.wire_targets import INNER, OUTER, product_fields

EXECUTIONS = int(os.environ.get("DLOG_FUZZ_EXECUTIONS", "20000"))
AT_ONCE = 1_000
STRICTER = re.compile(r"has wire type|nested more than|more than 64 bits|there is no field")

_OUTER, _INNER = product_fields(OUTER), product_fields(INNER)


def google_message() -> Any:
    """A class with the fields of the fuzzed message."""
    reason = "the package protobuf is not installed"
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2", reason=reason)
    from google.protobuf import descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="fuzz.proto", package="fuzz", syntax="proto2")
    for name, kinds in (("Inner", INNER), ("Outer", OUTER)):
        message = file.message_type.add(name=name)
        for number, kind in kinds.items():
            made = message.field.add(name=f"f{number}", number=number, label=field.LABEL_OPTIONAL)
            made.type = field.TYPE_BYTES if kind == BYTES else field.TYPE_UINT64
            if name == "Outer" and number == 6:
                made.type, made.type_name = field.TYPE_MESSAGE, ".fuzz.Inner"
            if name == "Outer" and number == 100:
                made.label = field.LABEL_REPEATED
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fuzz.Outer"))


def test_the_same_bytes_are_the_same_message() -> None:
    kind = google_message()
    campaign = Campaign(TARGETS["protobuf"], seed=7)
    campaign.run(executions=5_000)
    both = 0
    for _ in range(EXECUTIONS // AT_ONCE):
        for raw in [*campaign.corpus, *campaign.inputs(AT_ONCE)]:
            both += agree(kind, raw)
    assert both > 0


def agree(kind: Any, raw: bytes) -> bool:
    theirs = parsed_by_google(kind, raw)
    try:
        ours = values(raw)
    except (Corrupt, FormatError) as error:
        told = str(error)
    else:
        told = ""
    if told:
        assert theirs is None or STRICTER.search(told), (raw, told, theirs)
        return False
    if theirs is None:
        assert has_long_tag(raw), (raw, ours)
        return False
    assert ours == theirs, raw
    return True


def parsed_by_google(kind: Any, raw: bytes) -> dict[object, object] | None:
    from google.protobuf.message import DecodeError

    try:
        message = kind.FromString(raw)
    except DecodeError:
        return None
    told = {each.number: value for each, value in message.ListFields()}
    for number in (6, 100):
        if number in told:
            told[number] = (
                {each.number: value for each, value in told[6].ListFields()}
                if number == 6
                else list(told[100])
            )
    if 6 not in told and message.HasField("f6"):
        told[6] = {}
    return told


def values(raw: bytes) -> dict[object, object]:
    message = Message(raw, _OUTER, "here")
    told: dict[object, object] = {}
    for number, kind in OUTER.items():
        if number not in message:
            continue
        if number == 6:
            inner = message.message(6, _INNER, "inner")
            told[6] = {
                n: inner.uint64(n) if k != BYTES else bytes(inner.bytes(n))
                for n, k in INNER.items()
                if n in inner
            }
        elif number == 100:
            told[100] = [bytes(each) for each in message._strings[100]]
        else:
            told[number] = bytes(message.bytes(number)) if kind == BYTES else message.uint64(number)
    return told


def has_long_tag(raw: bytes) -> bool:
    """Some number of six bytes or more whose upper part is zero, which a tag may be."""
    return re.search(rb"[\x80-\xff]{4}[\x80-\x8f]\x80*\x00", raw) is not None
