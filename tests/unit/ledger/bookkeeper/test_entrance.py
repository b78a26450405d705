"""What comes before the first request, against peers that are no proper bookies: each ends in a
refusal that says why, with nothing left open and nothing sent that should not be."""

from __future__ import annotations

import asyncio
import random
import shutil
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from dlog.chance import SYSTEM_CHANCE
from dlog.clock import SYSTEM_CLOCK
from dlog.errors import AuthError, ConfigError
from dlog.ledger.bookkeeper.auth import DigestMd5
from dlog.ledger.bookkeeper.entrance import AUTH_ROUNDS_MAX, Entrance, Refused
from dlog.ledger.bookkeeper.transport import BookieControlLink, Link
from dlog.limits import BOOKIE_AUTH_BYTES_MAX
from dlog.secret import Secret
from dlog.testing.cluster.authority import Authority
from dlog.tls import TlsContexts, TlsOptions
from dlog.wire.bookie_auth import AUTH_DISABLED, AuthMessage
from dlog.wire.bookie_v3 import Operation, pack_start_tls
from dlog.wire.digest_md5 import DigestMd5Dialogue
from dlog.wire.protobuf import pack_bytes, pack_number

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on PATH")

WHO = DigestMd5("bookkeeper-tests", Secret(b"canary-of-the-user"), unsafe_without_tls=True)
OK, REFUSED, UNAUTHORIZED = 0, 501, 502

Say = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Owner:
    def on_link_made(self, link: Link) -> None: ...
    def on_first_answer(self, link: Link) -> None: ...
    def on_link_down(self, link: Link, error: Any) -> None: ...
    def on_link_gone(self, link: Link) -> None: ...
    def on_trouble(self, link: Link, answer: Any) -> None: ...
    def on_hung(self, link: Link) -> None: ...


def response(operation: Operation, txn_id: int, status: int, body: bytes = b"") -> bytes:
    header = pack_number(1, 3) + pack_number(2, operation) + pack_number(3, txn_id)
    packed = pack_bytes(1, header) + pack_number(2, status) + body
    return struct.pack(">i", len(packed)) + packed


def tls_agreed(status: int = OK) -> bytes:
    return response(Operation.START_TLS, 1, status, pack_bytes(106, b"") if status == OK else b"")


def auth_answer(txn_id: int, plugin: str, payload: bytes, status: int = OK) -> bytes:
    body = pack_bytes(102, AuthMessage(plugin, payload).to_bytes())
    return response(Operation.AUTH, txn_id, status, body)


async def frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> TlsContexts:
    return TlsContexts(TlsOptions(ca_file=authority.ca_file))


@asynccontextmanager
async def peer(say: Say) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server with one script; its port, and what it heard behind it."""
    heard: list[bytes] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await say(reader, writer)
            heard.append(await reader.read())
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], heard
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks)
    finally:
        server.close()


async def enter(
    port: int,
    *,
    tls: TlsContexts | None = None,
    auth: DigestMd5 | None = None,
    timeout_s: float = 5,
) -> BookieControlLink:
    link = BookieControlLink("b1", "bookie b1", Owner(), SYSTEM_CLOCK)
    entrance = Entrance(tls=tls, auth=auth, chance=SYSTEM_CHANCE)
    await entrance.connect(link, "127.0.0.1", port, timeout_s=timeout_s)
    return link


async def is_refused(say: Say, why: str, **asked: Any) -> list[bytes]:
    """What the peer heard behind its script."""
    async with peer(say) as (port, heard):
        with pytest.raises(Refused, match=why) as caught:
            await enter(port, **asked)
        assert "canary" not in str(caught.value)
    return heard


# --- TLS


async def test_a_bookie_without_tls_is_refused_and_hears_no_more(tls: TlsContexts) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert struct.pack(">i", 11) + await frame(reader) == pack_start_tls(1)
        writer.write(tls_agreed(REFUSED))

    assert await is_refused(say, "offers no TLS", tls=tls) == [b""]


async def test_another_answer_is_no_agreement(tls: TlsContexts) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await frame(reader)
        writer.write(auth_answer(1, AUTH_DISABLED, b""))

    assert await is_refused(say, "offers no TLS", tls=tls) == [b""]


async def test_bytes_slipped_in_behind_the_agreement_are_refused(tls: TlsContexts) -> None:
    """They came in the clear and would be read as if they had come under TLS."""
    for slipped in (auth_answer(2, AUTH_DISABLED, b""), b"\x00"):

        async def say(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slipped: bytes = slipped
        ) -> None:
            await frame(reader)
            writer.write(tls_agreed() + slipped)

        assert await is_refused(say, "more than it was asked", tls=tls) == [b""]


async def test_a_peer_that_breaks_the_handshake(tls: TlsContexts) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await frame(reader)
        writer.write(tls_agreed())
        await reader.read(1)
        writer.write(b"no record of TLS at all")

    await is_refused(say, "TLS handshake", tls=tls)


async def test_a_frame_before_the_proof_is_small(tls: TlsContexts) -> None:
    for length in (BOOKIE_AUTH_BYTES_MAX + 1, (1 << 31) - 1, -1):

        async def say(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, length: int = length
        ) -> None:
            await frame(reader)
            writer.write(struct.pack(">i", length) + bytes(100))

        await is_refused(say, "a frame of", tls=tls)
        await is_refused(say, "a frame of", auth=WHO)


async def test_answers_that_nobody_asked_for_are_bounded(tls: TlsContexts) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await frame(reader)
        writer.write(tls_agreed() * 100)

    await is_refused(say, "nobody asked|more than it was asked", tls=tls)


async def test_a_peer_that_hangs_up_or_babbles(tls: TlsContexts) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await frame(reader)
        writer.transport.abort()

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await frame(reader)
        writer.write(struct.pack(">i", 40) + b"\xff" * 40)

    for asked in ({"tls": tls}, {"auth": WHO}):
        await is_refused(hang_up, "hung up", **asked)
        await is_refused(babble, "bookie b1", **asked)


async def test_who_gives_up_waiting_leaves_no_socket_behind(tls: TlsContexts) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await frame(reader)
        asked.set()
        await reader.read()
        gone.set()

    async with peer(say) as (port, _):
        entering = asyncio.create_task(enter(port, tls=tls))
        await asked.wait()
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        async with asyncio.timeout(5):
            await gone.wait()


async def test_behind_the_handshake_the_link_has_the_connection(
    authority: Authority, tls: TlsContexts
) -> None:
    identity = authority.issue("peer")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.both_file)

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await frame(reader)
        writer.write(tls_agreed())
        await writer.start_tls(context)

    async with peer(say) as (port, heard):
        link = await enter(port, tls=tls)
        link._send(b"hello")
        assert link._transport is not None
        link._transport.close()
        async with asyncio.timeout(5):
            await link.wait_gone()
    assert heard == [b"hello"]


# --- Who we are


def challenged(*answers: bytes | Callable[[bytes], bytes]) -> Say:
    """Says one after the other, whatever it hears."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            heard = await frame(reader)
            writer.write(answer(heard) if callable(answer) else answer)

    return say


CHALLENGE = b'realm="bookkeeper",nonce="n",qop="auth",charset=utf-8,algorithm=md5-sess'


async def test_a_bookie_that_wants_nobody_is_refused() -> None:
    """Somebody between us and the bookie would say just that."""
    await is_refused(challenged(auth_answer(2, AUTH_DISABLED, b"")), "no authent", auth=WHO)


async def test_another_plugin_is_refused() -> None:
    await is_refused(challenged(auth_answer(2, "kerberos", CHALLENGE)), "another way", auth=WHO)


async def test_a_success_that_comes_early_is_refused() -> None:
    say = challenged(auth_answer(2, "sasl", b""))
    await is_refused(say, "satisfied before", auth=WHO)
    say = challenged(auth_answer(2, "sasl", CHALLENGE), auth_answer(3, "sasl", b""))
    await is_refused(say, "did not prove", auth=WHO)


async def test_a_bookie_that_does_not_know_the_password_is_refused() -> None:
    for proof in (b"rspauth=" + b"0" * 32, b"rspauth=", CHALLENGE, b"x"):
        say = challenged(auth_answer(2, "sasl", CHALLENGE), auth_answer(3, "sasl", proof))
        await is_refused(say, "password|list of fields", auth=WHO)


async def test_silence_behind_our_answer_is_told_as_what_it_is() -> None:
    """A stock bookie says nothing to one whom it does not know, and does not hang up."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await challenged(auth_answer(2, "sasl", CHALLENGE))(reader, writer)
        await reader.read()

    await is_refused(say, "no such user", auth=WHO, timeout_s=0.3)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with peer(silent) as (port, _):
        with pytest.raises(TimeoutError):
            await enter(port, auth=WHO, timeout_s=0.3)


async def test_a_refusal_ends_it() -> None:
    say = challenged(response(Operation.AUTH, 2, UNAUTHORIZED))
    assert await is_refused(say, "does not let us in", auth=WHO) == [b""]
    say = challenged(auth_answer(2, "sasl", CHALLENGE, UNAUTHORIZED))
    await is_refused(say, "does not let us in", auth=WHO)
    await is_refused(challenged(tls_agreed()), "does not let us in", auth=WHO)


async def test_a_dialogue_has_a_bounded_number_of_rounds() -> None:
    class Endless:
        plugin, needs_tls = "sasl", False

        def begin(self, chance: Any) -> Any:
            return self

        def first(self) -> bytes:
            return b""

        def answer(self, payload: bytes, where: str) -> bytes | None:
            return b"again"

    say = challenged(*(auth_answer(2 + n, "sasl", b"more") for n in range(AUTH_ROUNDS_MAX)))
    await is_refused(say, "not satisfied after", auth=Endless())


def knows(password: str) -> Say:
    """The peer computes from the password what it should hear, and says what it should say."""

    def proof(heard: bytes) -> bytes:
        nonce = heard.split(b'cnonce="')[1].split(b'"')[0].decode()
        twin = DigestMd5Dialogue(
            WHO.user, password, uri="bookkeeper/bookkeeper", client_nonce=nonce
        )
        assert twin.respond(CHALLENGE, "twin") in heard
        assert b"canary" not in heard
        assert twin._wanted is not None
        return auth_answer(3, "sasl", b"rspauth=" + twin._wanted)

    return challenged(auth_answer(2, "sasl", CHALLENGE), proof)


async def is_let_in(who: DigestMd5, password: str) -> None:
    async with peer(knows(password)) as (port, _):
        link = await enter(port, auth=who)
        assert link.is_up
        assert link._transport is not None
        link._transport.abort()
        await link.wait_gone()


async def test_who_proves_itself_is_let_in_and_so_are_we() -> None:
    await is_let_in(WHO, "canary-of-the-user")


async def test_the_password_is_asked_for_at_each_connection() -> None:
    answers = ["bookkeeper-tests:canary-1", "bookkeeper-tests:canary-2", "later:canary-3"]
    both = Secret(lambda: answers[0])
    who = replace(DigestMd5.of(both), unsafe_without_tls=True)
    for password in ("canary-1", "canary-2"):
        await is_let_in(who, password)
        answers.pop(0)
    assert who.user == "bookkeeper-tests", "who it was at the first"
    for broken in (b"nobody", b":x", b"nobody:"):
        with pytest.raises(ConfigError, match="user:password"):
            DigestMd5.of(Secret(broken))


async def test_no_order_of_answers_lets_anybody_in_without_a_proof() -> None:
    """Whatever a peer says that does not know the password, and in whatever order."""
    chance = random.Random(7)
    proofs = [b"rspauth=" + bytes(chance.choices(b"0123456789abcdef", k=32)) for _ in range(3)]
    payloads = [b"", CHALLENGE, CHALLENGE + b",stale=true", b"\xff", b"rspauth=", *proofs]
    plugins = ["sasl", "sasl", "sasl", AUTH_DISABLED, "", "org.apache.Plugin"]

    def said(txn_id: int) -> bytes:
        match chance.randrange(8):
            case 0:
                return tls_agreed()
            case 1:
                return response(Operation.AUTH, txn_id, chance.choice([OK, UNAUTHORIZED]))
            case _:
                number = txn_id if chance.random() < 0.9 else chance.randrange(5)
                status = OK if chance.random() < 0.95 else UNAUTHORIZED
                return auth_answer(number, chance.choice(plugins), chance.choice(payloads), status)

    reasons = set()
    for _ in range(300):
        script = [said(2 + n) for n in range(chance.randrange(1, 6))]
        if chance.random() < 0.2:
            script[0] += said(2)
        async with peer(challenged(*script)) as (port, _heard):
            with pytest.raises(Refused) as caught:
                await enter(port, auth=WHO, timeout_s=0.5)  # some peers never answer
        reasons.add(str(caught.value).partition(":")[0])
    assert len(reasons) >= 6, reasons


def test_a_password_that_can_be_guessed_at_home_goes_under_tls_only(tls: TlsContexts) -> None:
    who = DigestMd5("bookkeeper-tests", Secret(b"x"))
    with pytest.raises(ConfigError, match="use TLS"):
        Entrance(tls=None, auth=who, chance=SYSTEM_CHANCE)
    Entrance(tls=tls, auth=who, chance=SYSTEM_CHANCE)
    Entrance(tls=None, auth=WHO, chance=SYSTEM_CHANCE)
    assert "canary" not in repr(WHO)


def test_who_has_no_name_is_nobody() -> None:
    for user in ("", "a\nb"):
        with pytest.raises(ConfigError):
            DigestMd5(user, Secret(b"x"))
    with pytest.raises(ConfigError):
        DigestMd5("u", b"x")  # type: ignore[arg-type]
    with pytest.raises(AuthError):
        DigestMd5Dialogue("a\nb", "x", uri="a/b", client_nonce="n")
