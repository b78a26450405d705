"""What stands in the metadata store of logs, and what users hand in: log metas, pages, nodes of
ledgers in files, message ids, positions, URLs."""

from __future__ import annotations

import json
import os
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from dlog import uri
from dlog.chance import SYSTEM_CHANCE
from dlog.errors import ConfigError, Corrupt, FormatError, TooLarge, Unsupported
from dlog.ids import MessageId, Position, check_log_name
from dlog.ledger.embedded.nodes import LedgerNodes
from dlog.ledger.store import LedgerState
from dlog.meta.document import LogDocument, checksum_of, page_node
from dlog.meta.layout import escape, unescape
from dlog.meta.log_meta import LogMeta
from dlog.meta.pages import page_from_bytes, page_to_bytes, refs_from_bytes
from dlog.meta.store import Versioned
from dlog.streams.config.document import Document as ConfigDocument
from dlog.streams.config.document import Stamp, with_values
from dlog.streams.config.sections import check_known
from tests.fuzz.mutation import Mutator
from tests.fuzz.target import Target, must, require

HERE = "the fuzzed log"
_VECTORS = Path(__file__).parents[1] / "vectors" / "log_meta"
_PAGES = ("page", "page_of_pages")
_JSON_WORDS = [
    b"null",
    b"true",
    b"-1",
    b"-2",
    b"1e400",
    b"NaN",
    b"9223372036854775807",
    b"9223372036854775808",
    b"9" * 4400,
    b'"\\ud800"',
    b"\\udc00",
    b"\xed\xa0\x80",
    b"\xff\xfe",
    b"[" * 1200,
    b'{"a":' * 700,
    b'"last_entry":3,',
    b'"later":{"a":[1]},',
    b'"needs":["x"]',
    b"{}",
    b"[]",
    b'""',
]


def _vectors() -> list[bytes]:
    return [path.read_bytes() for path in sorted(_VECTORS.glob("[!p]*.json"))]


class _Json(Target):
    dictionary = tuple(_JSON_WORDS)
    memory_factor = 64.0  # JSON as Python objects: an empty list is 56 bytes for two
    input_bytes_max = 1 << 14

    def mutate(self, mutator: Mutator, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        if mutator.random() < 0.6:
            return mutator.mutate_json(raw)
        return mutator.mutate(raw, corpus)


class LogMetas(_Json):
    """What is read can be written, fields of later versions with it; nothing but `FormatError`."""

    name = "log-meta"
    refusals = (FormatError,)

    def seeds(self) -> list[bytes]:
        return _vectors()

    def check(self, raw: bytes) -> str:
        meta = LogMeta.from_bytes(raw, where=HERE)
        again = must(lambda: LogMeta.from_bytes(meta.to_bytes(), where=HERE), "there and back")
        # NaN is JSON to Python and not equal to itself; the bytes tell.
        require(again.to_bytes() == meta.to_bytes(), "there and back", meta)
        numbers = [each.number for each in meta.segments]
        require(numbers == sorted(set(numbers)), "segments rise", numbers)
        ledgers = [each.ledger_id for each in meta.segments]
        require(ledgers == sorted(set(ledgers)), "ledgers rise", ledgers)
        return f"log {meta.state.value} {min(2, len(meta.segments))} {bool(meta.extra)}".lower()


class Pages(_Json):
    name = "log-page"
    refusals = (FormatError,)

    def seeds(self) -> list[bytes]:
        return [(_VECTORS / "page.json").read_bytes()]

    def check(self, raw: bytes) -> str:
        segments = page_from_bytes(raw, where=HERE)
        packed = page_to_bytes(segments)
        again = must(lambda: page_to_bytes(page_from_bytes(packed, where=HERE)), "there and back")
        require(again == packed, "there and back", segments)
        require(all(each.sealed is not None for each in segments), "sealed ones only", segments)
        return f"page {min(3, len(segments))}"


class PagesOfPages(_Json):
    name = "log-page-of-pages"
    refusals = (FormatError,)

    def seeds(self) -> list[bytes]:
        return [(_VECTORS / "page_of_pages.json").read_bytes()]

    def check(self, raw: bytes) -> str:
        refs = refs_from_bytes(raw, where=HERE)
        packed = page_to_bytes(refs)
        again = must(lambda: page_to_bytes(refs_from_bytes(packed, where=HERE)), "there and back")
        require(again == packed, "there and back", refs)
        return f"pages {min(3, len(refs))}"


class Documents(_Json):
    """All metadata of a log. What was changed has a new checksum here, or nothing else would ever
    be looked at."""

    name = "log-document"
    refusals = (FormatError, Corrupt, ConfigError)
    dictionary = (
        *_JSON_WORDS,
        b'"level":1,',
        b'"0000000001.1":',
        b'"pages":{}',
        b'"state":"moved"',
    )

    def seeds(self) -> list[bytes]:
        leaf, above = (json.loads((_VECTORS / f"{n}.json").read_bytes()) for n in _PAGES)
        found = []
        for path in sorted(_VECTORS.glob("[!p]*.json")):
            node = json.loads(path.read_bytes())
            pages = {page_node(ref["number"], ref["level"]): leaf for ref in node["pages"]}
            pages |= {page_node(each["number"], each["level"]): above
                      for each in node["deleting_pages"]}  # fmt: skip
            holds = {"a%2Fb": {"seq": 4}}
            found.append(LogDocument("a/b", "file:/a", 5, node, pages, holds).to_bytes())
        return found

    def check(self, raw: bytes) -> str:
        try:
            fields = json.loads(raw)
            bare = {k: v for k, v in fields.items() if k != "sha256"}
            raw = json.dumps({**bare, "sha256": checksum_of(bare)}).encode()
        except (ValueError, AttributeError, RecursionError):
            pass
        document = LogDocument.from_bytes(raw, where=HERE)
        packed = document.to_bytes()
        again = must(lambda: LogDocument.from_bytes(packed, where=HERE), "there and back")
        require(again.to_bytes() == packed, "there and back", document)
        segments = list(document.segments())
        require(len(segments) >= len(document.meta.segments), "all segments", segments)
        return f"document {document.meta.state.value} {min(3, len(segments))}"


class _OneNode:
    """A metadata store in which every node holds the same bytes."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    async def sync(self) -> None:
        pass

    async def get(self, path: str) -> Versioned:
        return Versioned(self._raw, 3)


def done(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of what never waits."""
    try:
        coroutine.send(None)
    except StopIteration as told:
        return told.value
    raise AssertionError("it waits")


class Configs(_Json):
    """Documents that change while programs run: what is read can be changed and written, and the
    parts of this library say what they are or refuse."""

    name = "config-document"
    refusals = (FormatError,)
    dictionary = (*_JSON_WORDS, b'"writer":{"linger_ms":1},', b'"logs":[{"pattern":"a"}]')

    def seeds(self) -> list[bytes]:
        vectors = Path(__file__).parents[1] / "vectors" / "config"
        return [path.read_bytes() for path in sorted(vectors.glob("*.json"))]

    def check(self, raw: bytes) -> str:
        document = ConfigDocument.from_bytes(raw, where=HERE)
        again = must(
            lambda: ConfigDocument.from_bytes(_bytes(document), where=HERE), "there and back"
        )
        require(_bytes(again) == _bytes(document), "there and back", document)
        content = must(lambda: with_values(document.content, "log", {"a": 1}), "a change")
        later = must(lambda: document.changed(content, Stamp("t", "who", 1)), "the next version")
        require(later.version == document.version + 1, "versions grow by one", document)
        require(later.oldest <= document.version, "the one before is kept", later)
        try:
            check_known(document.content, unchecked=True)
        except ConfigError:
            return "config refused"
        return f"config {min(2, len(document.history))}"


def _bytes(document: ConfigDocument) -> bytes:
    try:
        return document.to_bytes()
    except TooLarge:
        return document.old_bytes()


class EmbeddedNodes(_Json):
    """The node of a ledger in a file: numbers in range, an end exactly when it is closed."""

    name = "embedded-node"
    refusals = (FormatError,)
    dictionary = (
        *_JSON_WORDS,
        b'"state":"closed"',
        b'"AA=="',
        b'"uid":"00"',
    )

    def seeds(self) -> list[bytes]:
        spec = (
            b'"spec":{"ack_quorum":2,"custom":{"a":"AAE="},"digest":"crc32c","ensemble":3,'
            b'"write_quorum":3}'
        )
        uid = b'"uid":"000102030405060708090a0b0c0d0e0f"'
        opened = b'{"created_us":5,"format":1,' + spec + b',"state":"open",' + uid + b"}"
        end = b'"closed":{"bytes":9,"last_entry":2,"offset":192},'
        closed = b'{"created_us":5,"format":1,' + end + spec + b',"state":"closed",' + uid + b"}"
        return [opened, closed, b'{"format":1,"store":"00ff"}']

    def check(self, raw: bytes) -> str:
        nodes = LedgerNodes(_OneNode(raw), "/ledgers", SYSTEM_CHANCE)  # type: ignore[arg-type]
        if b'"store"' in raw:
            uid = done(nodes.store_uid()) if raw else ""
            require(isinstance(uid, str), "a uid", uid)
            return "store"
        node = done(nodes.read(3))
        require((node.end is None) == (node.info.state is LedgerState.OPEN), "an end is closed")
        require(len(node.uid) == 16, "a uid of 16 bytes", node.uid)
        if node.end is not None:
            last, size, offset = node.end.last_entry, node.end.bytes, node.end.offset
            require(-1 <= last < 1 << 63 and 0 <= size < 1 << 63, "an end", node.end)
            require(0 <= offset < 1 << 63 and (last == -1) == (offset == 0), "a place", node.end)
        return f"node {node.info.state.value}"


class Ids(Target):
    """Order of bytes is order of values, from -1 to 2**63 - 1. The first byte says what it is."""

    name = "message-id"
    refusals = (FormatError,)
    dictionary = (
        b":",
        b"-1",
        b"9223372036854775807",
        b"9223372036854775808",
        b"2147483647",
        b"2147483648",
        b"00",
        "\u0661".encode(),
        b'"after":null',
        b'"next_seq":0',
        b"[" * 500,
        b"1.0",
        b'"\\ud800"',
    )

    def seeds(self) -> list[bytes]:
        ids = [MessageId(12, 345, 6), MessageId(-1, -1, -1), MessageId((1 << 63) - 1, 0, 7)]
        seeds = [b"\0" + str(each).encode() for each in ids]
        seeds += [b"\1" + one.bytes + two.bytes for one in ids for two in ids]
        seeds += [b"\2" + Position("log", 5, each).to_text().encode() for each in ids]
        return [*seeds, b"\2" + Position("log", 0, None).to_text().encode()]

    def mutate(self, mutator: Mutator, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        if raw[:1] == b"\2" and mutator.random() < 0.5:
            return b"\2" + mutator.mutate_json(raw[1:])
        if raw[:1] == b"\1" and mutator.random() < 0.5 and len(raw) == 41:
            data = bytearray(raw)
            data[1 + mutator.below(40)] = mutator.below(256)
            return bytes(data)
        return mutator.mutate(raw, corpus)

    def check(self, raw: bytes) -> str:
        kind, text = raw[:1], raw[1:].decode("utf-8", "surrogateescape")
        if kind == b"\1":
            one, two = MessageId.from_bytes(raw[1:21]), MessageId.from_bytes(raw[21:])
            require(one.bytes == raw[1:21], "there and back", one)
            require((one < two) == (one.bytes < two.bytes), "order of bytes", one, two)
            require((one == two) == (one.bytes == two.bytes), "equality of bytes", one, two)
            again = must(lambda: MessageId.parse(str(one)), "text, there and back")
            require(again == one, "text, there and back", one)
            return f"bytes {'less' if one < two else 'not less'}"
        if kind == b"\2":
            position = Position.parse(text)
            moved = must(lambda: Position.parse(position.to_text()), "there and back")
            require(moved == position, "there and back", position)
            require(0 <= position.next_seq < 1 << 63, "a seq", position)
            return f"position {'new' if position.after is None else 'after'}"
        found = MessageId.parse(text)
        require(str(found) == text, "one text for an id", text)
        again = must(lambda: MessageId.from_bytes(found.bytes), "bytes, there and back")
        require(again == found, "bytes, there and back", found)
        return "text"


class Urls(Target):
    """A URL, or the name of a log: a value, or an error that says what would make sense."""

    name = "url"
    refusals = (ConfigError, Unsupported)
    dictionary = (
        b"file:",
        b"memory:",
        b"zk://",
        b"ledgers=",
        b"tls=required",
        b"tls_ca=",
        b"tls_system_cas=true",
        b"password=",
        b"zk_auth=",
        b":2181",
        b",",
        b"[::1]",
        b"@",
        b"//",
        b"localhost",
        b"?",
        b"&",
        b"=",
        b"meta_timeout_ms=",
        b"%00",
        b"%2f",
        b"%zz",
        b"%ff",
        b"~",
        b"~root",
        b"#",
        b"9" * 5000,
        "\u0664".encode(),
        b"\xed\xa0\x80",
        b"..",
        b"./",
        b"\0",
    )
    input_bytes_max = 1 << 13

    def seeds(self) -> list[bytes]:
        return [
            b"file:./data",
            b"file:///tmp/x?meta_timeout_ms=500",
            b"file://localhost/tmp/%20x",
            b"memory:test?meta_timeout_ms=1",
            b"file:~/logs",
            b"zk:host",
            b"zk://zk1:2181,zk2,[::1]:2183/dlog?ledgers=/ledgers&session_timeout_ms=5000",
            b"zk://zk1/a/b?tls=required&tls_ca=/x.pem&tls_system_cas=true&tls_cert=c&tls_key=k",
            b"\1orders/eu",
            "\1gr\u00f6\u00dfe".encode(),
        ]

    def check(self, raw: bytes) -> str:
        if raw[:1] == b"\1":
            name = check_log_name(_text(raw[1:]))
            node = escape(name)
            require("/" not in node and node not in ("", ".", ".."), "one node", node)
            require(unescape(node) == name, "there and back", name)
            return "name"
        url = uri.parse(_text(raw))
        require(bool(os.fsencode(url.place)), "a place has bytes", url)
        require(url.scheme in ("file", "memory", "zk") and bool(url.place), "a place", url)
        require("\0" not in url.place, "no path has a zero byte", url)
        require(1 <= url.options.meta_timeout_ms <= 600_000, "options in range", url)
        return url.scheme


def _text(raw: bytes) -> str:
    """Any text that Python can hold: also what came from a command line that is no UTF-8, and
    halves of surrogate pairs."""
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "surrogateescape")


TARGETS = (
    LogMetas(),
    Pages(),
    PagesOfPages(),
    Documents(),
    Configs(),
    EmbeddedNodes(),
    Ids(),
    Urls(),
)
