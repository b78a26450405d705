"""What a bookie answers is taken for what it is: a refusal is not "it has none", and an answer to
another question is no answer."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dlog.errors import DlogError
from dlog.testing import raw_ledgers
from dlog.testing.raw_ledgers import RawBookie, connected, metadata_of, stored_entry
from dlog.wire.bookie_codes import Answer


@contextmanager
def bookie_that_says(answer: bytes) -> Iterator[Any]:
    """To whatever it is asked, and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        yield SimpleNamespace(bookie_id="b0", port=server.getsockname()[1])
        serving.join(30)


def test_a_bookie_that_goes_is_no_bookie_without_the_entry() -> None:
    with bookie_that_says(struct.pack(">I", 100) + b"cut") as bookie:
        with pytest.raises(ConnectionResetError, match="b0 closed the connection"):
            stored_entry(bookie, 1, 0)


@pytest.mark.parametrize(
    "answer",
    [each for each in Answer if each not in (Answer.OK, Answer.NO_ENTRY, Answer.NO_LEDGER)],
)
def test_a_refusal_does_not_say_that_there_is_none(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = SimpleNamespace(answer=answer, entry=None)
    monkeypatch.setattr(RawBookie, "__init__", lambda self, bookie: None)
    monkeypatch.setattr(RawBookie, "close", lambda self: None)
    monkeypatch.setattr(RawBookie, "read", lambda self, *_: reply)
    with pytest.raises(AssertionError, match=answer.name):
        stored_entry(SimpleNamespace(), 1, 0)  # type: ignore[arg-type]
    reply.answer = Answer.NO_ENTRY
    assert stored_entry(SimpleNamespace(), 1, 0) is None  # type: ignore[arg-type]


def test_an_answer_to_another_question_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_ledgers, "parse_reply", lambda frame, where: "something else")
    with bookie_that_says(struct.pack(">I", 1) + b"x") as bookie, connected(bookie) as raw:
        with pytest.raises(AssertionError, match="no AddReplies: 'something else'"):
            raw.send_adds(b"frame", 1)


def test_what_is_no_metadata_is_refused() -> None:
    with pytest.raises(DlogError, match="ledger 7"):
        metadata_of(SimpleNamespace(ledgers_root="/ledgers"), 7, b"nonsense")  # type: ignore[arg-type]


def test_a_frame_without_a_head_is_refused() -> None:
    with pytest.raises(struct.error):
        raw_ledgers.head_of(b"short")
