"""What a document may say of writers, readers, logs and the process, and for whom it counts."""

from __future__ import annotations

from typing import Any

import pytest

from dlog import limits
from dlog.errors import ConfigError
from dlog.options import LogOptions, ReaderOptions, WriterOptions
from dlog.streams.config import sections
from dlog.streams.config.sections import (
    LOG_OPTIONS,
    READER_OPTIONS,
    VALIDATORS,
    WRITER_OPTIONS,
    check_codecs,
    check_known,
    client_section,
    log_sections,
    reader_sections,
    register_validator,
    writer_sections,
)


def test_a_document_overrides_defaults_and_not_what_the_program_gave() -> None:
    found = writer_sections({"linger_ms": 5, "window_entries": 7})
    options = WriterOptions(linger_ms=9)
    applied = found.applied(options, "orders", {"linger_ms"})
    assert (applied.linger_ms, applied.window_entries) == (9, 7)
    assert found.applied(options, "orders", ()).linger_ms == 5


def test_what_is_forced_overrides_the_program_too() -> None:
    found = writer_sections({"linger_ms": 5, "window_entries": 7, "force": ["linger_ms"]})
    applied = found.applied(
        WriterOptions(linger_ms=9, window_entries=3), "orders", {"linger_ms", "window_entries"}
    )
    assert (applied.linger_ms, applied.window_entries) == (5, 3)


def test_later_sections_of_a_log_win() -> None:
    found = writer_sections(
        {
            "linger_ms": 1,
            "entry_bytes": 100,
            "logs": [
                {"pattern": "orders-*", "linger_ms": 2},
                {"pattern": "orders-eu-*", "linger_ms": 3},
            ],
        }
    )
    lingers = {
        log: found.applied(WriterOptions(), log, ()).linger_ms
        for log in ("clicks", "orders-us-1", "orders-eu-1")
    }
    assert lingers == {"clicks": 1, "orders-us-1": 2, "orders-eu-1": 3}
    assert found.applied(WriterOptions(), "orders-eu-1", ()).entry_bytes == 100


def test_no_section_changes_nothing() -> None:
    options = WriterOptions(linger_ms=3)
    assert writer_sections(None).applied(options, "orders", ()) is options


@pytest.mark.parametrize(
    ("validate", "name"),
    [
        *[(writer_sections, n) for n in ("takeover", "owner", "visible", "open_timeout_ms")],
        *[(reader_sections, n) for n in ("follow", "on_truncated", "tail")],
        *[
            (log_sections, n)
            for n in ("ensemble", "write_quorum", "ack_quorum", "digest", "unsafe_single_copy")
        ],
    ],
)
def test_what_cannot_change_is_refused_by_its_name(validate: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"\.{name} cannot change while a handle is open"):
        validate({name: 1})


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("writer", {"linger": 5}),
        ("writer", {"linger_ms": -1}),
        ("writer", {"linger_ms": "5"}),
        ("writer", {"codec": "brotli"}),
        ("writer", {"force": ["linger_ms"]}),
        ("writer", {"force": "linger_ms", "linger_ms": 1}),
        ("writer", {"force": [["linger_ms"]], "linger_ms": 1}),
        ("writer", {"logs": {}}),
        ("writer", {"logs": [3]}),
        ("writer", {"logs": [{"linger_ms": 1}]}),
        ("writer", {"logs": [{"pattern": "", "linger_ms": 1}]}),
        ("writer", {"logs": [{"pattern": "a", "logs": []}]}),
        ("writer", {"logs": [{"pattern": "a", "takeover": "never"}]}),
        ("writer", {"logs": [{"pattern": "a"}] * (limits.CONFIG_PATTERNS_MAX + 1)}),
        ("reader", {"read_ahead_bytes": 0}),
        ("log", {"segment_bytes": 1}),
        ("log", {"segment_bytes": 1 << 20, "force": ["segment_bytes"]}),
        ("log", {"logs": [{"pattern": "a", "segment_age_s": 9, "force": ["segment_age_s"]}]}),
        ("client", {"log_levels": {"root": "INFO"}}),
        ("client", {"log_levels": {"dlog.writer": "LOUD"}}),
        ("client", {"log_levels": ["INFO"]}),
        ("client", {"meta_timeout_ms": 5}),
    ],
)
def test_what_makes_no_sense_is_refused(part: str, content: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        check_known({part: content})


def test_every_option_that_may_change_is_one_and_may_stand_in_a_document() -> None:
    kinds = (
        ("writer", WriterOptions(), WRITER_OPTIONS),
        ("reader", ReaderOptions(), READER_OPTIONS),
        ("log", LogOptions(), LOG_OPTIONS),
    )
    for part, options, names in kinds:
        check_known({part: {name: getattr(options, name) for name in names}})


def test_parts_that_nobody_knows_need_to_be_let_through() -> None:
    with pytest.raises(ConfigError, match="nobody here knows a part 'mine'"):
        check_known({"mine": {}})
    check_known({"mine": {}}, unchecked=True)
    with pytest.raises(ConfigError):
        check_known({"mine": {}, "writer": {"linger": 1}}, unchecked=True)


def test_other_rooms_add_their_own_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "VALIDATORS", dict(VALIDATORS))

    def no_servers(content: Any) -> None:
        if not content.get("servers"):
            raise ConfigError("a ring has servers")

    register_validator("ring", no_servers)
    check_known({"ring": {"servers": ["a"]}})
    with pytest.raises(ConfigError, match="a ring has servers"):
        check_known({"ring": {}})


def test_a_codec_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    check_codecs(writer_sections({"codec": "none"}))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"dlog\[zstd\]"):
        check_codecs(writer_sections({"codec": "zstd"}))


def test_levels_of_loggers() -> None:
    found = client_section({"log_levels": {"dlog": "INFO", "dlog.writer": "DEBUG"}})
    assert found.log_levels == {"dlog": "INFO", "dlog.writer": "DEBUG"}
    assert client_section(None).log_levels == {}


def test_what_is_said_of_a_stream_or_of_a_shard_holds_for_the_shard() -> None:
    """Of those that match either name the later ones win."""
    said = log_sections(
        {
            "retention_age_s": 1,
            "logs": [
                {"pattern": "orders", "retention_age_s": 2},
                {"pattern": "orders/3", "retention_age_s": 3},
                {"pattern": "clicks", "retention_age_s": 4},
            ],
        }
    )

    def kept(log: str, stream: str | None) -> int | None:
        return said.applied(LogOptions(), log, (), stream).retention_age_s

    assert [kept(f"orders/{n}", "orders") for n in (2, 3)] == [2, 3]
    assert kept("orders/2", None) == 1, "a log of its own"
    assert kept("clicks", None) == 4
