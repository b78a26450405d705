"""The same documents for programs without an event loop."""

from __future__ import annotations

import threading

import pytest

import dlog
from dlog.limits import READ_AHEAD_BYTES_DEFAULT
from dlog.streams.config.following import Plain


def test_a_document_is_changed_and_followed(url: str) -> None:
    with dlog.connect(url, config="prod") as client:
        document = client.config("prod")
        with client.open_writer("orders") as log:
            assert document.get().version == 0
            changed = document.set("writer", {"linger_ms": 3}, note="slower")
            followed = client.followed_config
            assert followed is not None
            assert followed.wait_for(changed.version, timeout=20).version == 1
            assert log.options.linger_ms == 3
            log.append(b"x")
            document.set("writer", {"on_full": "raise", "linger_ms": 0})
            followed.wait_for(2, timeout=20)
            assert log.options.on_full == "raise"
        with client.open_reader("orders") as reader:
            assert reader.options.read_ahead_bytes == READ_AHEAD_BYTES_DEFAULT
        assert [each.version for each in document.history()] == [2, 1]
        assert document.rollback(1).content == {"writer": {"linger_ms": 3}}
        with pytest.raises(dlog.Conflict):
            document.replace({}, if_version=1)
        assert "prod" in repr(document)


def test_a_part_of_ones_own(memory_url: str) -> None:
    with dlog.connect(memory_url) as client:
        document = client.config("prod")
        document.set("ring", {"servers": ["a"]}, unchecked=True)
        with document.follow(Plain("ring")) as hot:
            assert hot.current["ring"] == {"servers": ["a"]}
            assert (hot.version, hot.why(), hot.status().name) == (1, None, "prod")
            hot.add(Plain("other"))
            assert hot.current["other"] == {}
            hot.drop("other")
            with pytest.raises(dlog.Timeout):
                hot.wait_for(9, timeout=0.05)
        with client.follow_config("prod") as own:
            assert own.version == 1


def test_other_threads_never_see_half_of_a_version(memory_url: str) -> None:
    """CL-08: "config version swap is not atomic with the ring": one value holds all parts."""
    mixed: list[object] = []
    over = threading.Event()
    with dlog.connect(memory_url) as client:
        document = client.config("prod")
        document.replace({"a": {"x": 0}, "b": {"x": 0}}, unchecked=True)
        with document.follow(Plain("a"), Plain("b")) as hot:

            def look() -> None:
                while not over.is_set():
                    now = hot.current
                    if now["a"]["x"] != now["b"]["x"]:
                        mixed.append(now)

            looking = threading.Thread(target=look)
            looking.start()
            try:
                for number in range(1, 101):
                    made = document.replace(
                        {"a": {"x": number}, "b": {"x": number}}, unchecked=True
                    )
                hot.wait_for(made.version, timeout=20)
            finally:
                over.set()
                looking.join()
    assert not mixed
