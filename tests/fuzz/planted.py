"""What the fuzzer is worth: bugs planted by hand, each one line of a decoder, and the target that
must notice.

A plant is text to be replaced in the source of one function. It takes the place of the function's
code, not of the function, so everybody who holds the function meets the bug, and it is gone
afterwards.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, NamedTuple


class Plant(NamedTuple):
    target: str  # that must notice
    place: str  # module:function or module:class.function
    old: str
    new: str


PLANTS: dict[str, Plant] = {
    "frame_longer_than_the_cap": Plant(
        "frame",
        "dlog.wire.bookie_frame:FrameSplitter._frame_bytes",
        "<= body_bytes <= self._body_bytes_max",
        "<= body_bytes",
    ),
    "frames_of_a_run_look_alike_by_their_count": Plant(
        "frame",
        "dlog.wire.bookie_frame:FrameSplitter._count_alike",
        "if chunk[at + column : end : frame_bytes] != head[column : column + 1] * count:",
        "if False:",
    ),
    "cut_length_starts_anew": Plant(
        "frame",
        "dlog.wire.bookie_frame:FrameSplitter._mended",
        "self._take(LENGTH_BYTES - len(cut))",
        "self._take(LENGTH_BYTES)",
    ),
    "field_longer_than_the_message": Plant(
        "protobuf", "dlog.wire.protobuf:_end_of", "if size > len(view) - at:", "if False:"
    ),
    "number_of_more_than_64_bits": Plant(
        "protobuf", "dlog.wire.protobuf:read_varint", "if value >= _UINT64_END:", "if False:"
    ),
    "unknown_fields_dropped": Plant(
        "protobuf", "dlog.wire.protobuf:Message._sort", "if unknown:", "if False:"
    ),
    "last_piece_of_a_message_wins": Plant(
        "protobuf",
        "dlog.wire.protobuf:Message.message",
        "first, *others = self._strings[number]",
        "*others, first = self._strings[number]; others = []",
    ),
    "groups_end_as_they_like": Plant(
        "protobuf", "dlog.wire.protobuf:_skip_group", "if inner != number:", "if False:"
    ),
    "groups_nested_for_ever": Plant(
        "protobuf", "dlog.wire.protobuf:_skip_group", "if depth > NESTING_MAX:", "if False:"
    ),
    "entry_of_a_batch_not_bounded": Plant(
        "v2-reply",
        "dlog.wire.bookie_v2:_parse_batch_read",
        "<= entry_bytes <= end - at:",
        "<= entry_bytes:",
    ),
    "entry_without_its_numbers": Plant(
        "v2-reply", "dlog.wire.bookie_v2:_parse_read", "if len(entry) < NUMBERS_BYTES:", "if False:"
    ),
    "bytes_behind_a_refusal": Plant(
        "v2-reply", "dlog.wire.bookie_v2:_check_nothing", "if len(rest):", "if False:"
    ),
    "inner_code_not_looked_at": Plant(
        "v3-reply",
        "dlog.wire.bookie_v3_replies:parse_response",
        "if answer is Answer.OK and operation in _WITH_STATUS:",
        "if False:",
    ),
    "body_of_another_operation": Plant(
        "v3-reply",
        "dlog.wire.bookie_v3_replies:parse_response",
        "if bodies not in ([], [number]):",
        "if False:",
    ),
    "unknown_answer_ends_a_read": Plant(
        "data-connection",
        "dlog.ledger.bookkeeper.core.pending_reads:PendingReads.take_read",
        "read = self._reads.pop(key, None)",
        "read = self._reads.pop(key if key in self._reads else next(iter(self._reads), key), None)",
    ),
    "more_entries_than_asked": Plant(
        "data-connection",
        "dlog.ledger.bookkeeper.core.pending_reads:PendingReads.take_batch",
        "or len(reply.entries) > batch.count_max",
        "",
    ),
    "read_behind_another_forgotten": Plant(
        "data-connection",
        "dlog.ledger.bookkeeper.core.pending_reads:PendingReads.take_read",
        "self._send_next(key)",
        "self._behind.pop(key, None)",
    ),
    "answer_to_another_question": Plant(
        "control-connection",
        "dlog.ledger.bookkeeper.core.control_connection:ControlConnection._take",
        "if response.operation is not ask.operation:",
        "if False:",
    ),
    "digest_not_compared": Plant(
        "entry",
        "dlog.wire.bookie_digest:EntryDigest._verify",
        "if not hmac.compare_digest(made, view[NUMBERS_BYTES:head_bytes]):",
        "if False:",
    ),
    "digest_not_compared_in_runs": Plant(
        "entry",
        "dlog.wire.bookie_digest:EntryDigest._verify_fast",
        "crc32c(payload, crc32c(view[:NUMBERS_BYTES])) != stored",
        "False",
    ),
    "entry_of_another_ledger": Plant(
        "entry",
        "dlog.wire.bookie_digest:EntryDigest._verify",
        "if found_id != ledger_id:",
        "if False:",
    ),
    "lac_at_or_above_its_entry": Plant(
        "entry",
        "dlog.wire.bookie_digest:EntryDigest.verify_last",
        "if entry.last_confirmed >= entry.entry_id:",
        "if False:",
    ),
    "lac_of_another_ledger": Plant(
        "lac",
        "dlog.wire.bookie_digest:EntryDigest.verify_lac",
        "if found_id != ledger_id or last_confirmed < -1:",
        "if last_confirmed < -1:",
    ),
    "fragments_in_any_order": Plant(
        "ledger-metadata",
        "dlog.wire.ledger_metadata:_fragments_wrong",
        "if before.first_entry_id >= after.first_entry_id:",
        "if False:",
    ),
    "a_bookie_twice_in_an_ensemble": Plant(
        "ledger-metadata",
        "dlog.wire.ledger_metadata:_fragments_wrong",
        "if not len(bookies) == len(set(bookies)) == metadata.ensemble_size:",
        "if not len(bookies) == metadata.ensemble_size:",
    ),
    "fields_of_later_versions_lost": Plant(
        "ledger-metadata",
        "dlog.wire.ledger_metadata_format:_pair_of",
        "return CustomPair(key, value, message.unknown)",
        "return CustomPair(key, value)",
    ),
    "password_in_an_error": Plant(
        "metadata-text",
        "dlog.wire.protobuf_text:_Reader._unexpected",
        "is missing at byte {self._begin}",
        "is missing at {self._raw!r}",
    ),
    "lines_behind_the_end": Plant(
        "metadata-text",
        "dlog.wire.ledger_metadata_format:_parse_v1",
        'if any(row[1:2] == ["CLOSED"] for row in rows):',
        "if False:",
    ),
    "text_nested_for_ever": Plant(
        "metadata-text",
        "dlog.wire.protobuf_text:_Reader.fields",
        "if depth > NESTING_MAX:",
        "if False:",
    ),
    "port_beyond_16_bits": Plant(
        "service-info",
        "dlog.wire.bookie_service_info:_endpoint_of",
        "if not 0 < port < _PORT_END:",
        "if not 0 < port:",
    ),
    "two_paths_of_one_ledger": Plant(
        "cluster-names",
        "dlog.wire.ledger_paths:_is_written_so",
        "return ledger_path(manager, ledger_id) == path",
        "return True",
    ),
    "offsets_that_fall": Plant(
        "batch",
        "dlog.wire.columns:rising_to",
        "if offsets[0] == 0 and sorted(offsets) == list(offsets) else None",
        "if offsets[0] == 0 else None",
    ),
    "column_beyond_the_body": Plant(
        "batch", "dlog.wire.decode:_Walk.take", "if self.at > self.end:", "if False:"
    ),
    "header_name_of_any_bytes": Plant(
        "batch", "dlog.wire.columns:is_text", "if whole.isascii():", "if True:"
    ),
    "timestamps_that_fall": Plant(
        "batch",
        "dlog.wire.columns:never_falls",
        "return sorted(numbers) == list(numbers)",
        "return True",
    ),
    "header_of_another_length": Plant(
        "batch",
        "dlog.wire.layout:Header.__init__",
        "header_bytes + self.stored_bytes != len(buffer)",
        "False",
    ),
    "bomb_beyond_the_ratio": Plant(
        "codec",
        "dlog.wire.compress:decompress",
        "or raw_bytes > len(stored) * DECOMPRESS_RATIO_MAX",
        "",
    ),
    "body_shorter_than_told": Plant(
        "codec", "dlog.wire.compress:decompress", "if len(raw) != raw_bytes:", "if False:"
    ),
    "json_nested_for_ever": Plant(
        "control",
        "dlog.wire.control:_Fields.__init__",
        "except (ValueError, RecursionError):",
        "except ValueError:",
    ),
    "number_that_is_true": Plant(
        "control",
        "dlog.wire.control:_Fields.number",
        "type(value) is not int or not first <= value",
        "not isinstance(value, int) or not first - 1 <= value",
    ),
    "segments_in_any_order": Plant(
        "log-meta",
        "dlog.meta.listed:segments_from",
        "if later.number <= earlier.number or later.ledger_id <= earlier.ledger_id:",
        "if False:",
    ),
    "open_segment_in_a_page": Plant(
        "log-page",
        "dlog.meta.pages:page_from_bytes",
        "any(segment.sealed is None for segment in segments)",
        "False",
    ),
    "half_a_surrogate_pair": Plant(
        "log-meta", "dlog.meta.json_fields:load", 'if b"\\\\u" in raw:', "if False:"
    ),
    "end_of_a_ledger_in_a_file_unchecked": Plant(
        "embedded-node",
        "dlog.ledger.embedded.nodes:_end_of",
        "if not fits:",
        "if False:",
    ),
    "ids_below_minus_one": Plant(
        "message-id",
        "dlog.ids:_checked",
        "-1 <= ledger_id < _SIGN_64 and -1 <= entry_id",
        "-5 <= ledger_id < _SIGN_64 and -5 <= entry_id",
    ),
    "size_of_any_length": Plant(
        "typed",
        "dlog.cli.moments:parse_size",
        "if len(text) <= _CHARS_MAX else None",
        "",
    ),
    "zero_byte_in_a_path": Plant("url", "dlog.uri:_file_path", 'or "\\0" in place', ""),
    "payload_not_compared": Plant(
        "segment",
        "dlog.ledger.embedded.file:payload_is_whole",
        "and crc32c(raw[at:end]) == frame.payload_crc",
        "",
    ),
    "frame_of_another_place": Plant(
        "segment",
        "dlog.ledger.embedded.file:parse_frame",
        "if crc != crc32c(covered, salt) or",
        "if",
    ),
    "confirmed_entry_dropped_in_silence": Plant(
        "segment",
        "dlog.ledger.embedded.recovery:_Scan.follow",
        "if max(known, self._newest_confirmation(offset, bad_entry)) >= bad_entry:",
        "if False:",
    ),
    "words_that_name_any_place": Plant(
        "words",
        "dlog.ledger.embedded.recovery:find_end",
        "0 < confirmed_offset < OFFSET_END",
        "True",
    ),
    "damaged_payload_is_read": Plant(
        "segment-read",
        "dlog.ledger.embedded.reader:EmbeddedReader._cut",
        "if not payload_is_whole(frame, buffer, at):",
        "if False:",
    ),
}


@contextmanager
def planted(plant: Plant) -> Iterator[None]:
    function = _function(plant.place)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(plant.old) != 1:
        raise ValueError(f"{plant.place} holds {plant.old!r} {source.count(plant.old)} times")
    made: dict[str, Any] = {}
    code = compile(
        source.replace(plant.old, plant.new),
        function.__code__.co_filename,
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    exec(code, function.__globals__, made)
    [changed] = made.values()
    before, function.__code__ = function.__code__, changed.__code__
    try:
        yield
    finally:
        function.__code__ = before


def _function(place: str) -> FunctionType:
    module, _, path = place.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    if not isinstance(found, FunctionType):
        raise TypeError(f"{place} is no function")
    return found
