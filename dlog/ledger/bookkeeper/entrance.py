"""What comes before the first request on a connection: TLS, then who we are.

    entrance = Entrance(tls=TlsContexts(options), auth=DigestMd5(...), chance=chance)
    await entrance.connect(link, host, port, timeout_s=5)       # or Refused, OSError

A bookie starts TLS on a connection that began in the clear: one request asks for it, one answer
agrees, and the handshake follows. Nothing else leaves here before the handshake is done and the
certificate was found good; a refusal ends the connection, and so do bytes that came behind the
agreement, which somebody on the way might have put there. What is asked then is protobuf, since the
other protocol has no words for TLS; the link goes on in its own (a bookie tells them apart per
frame, under TLS as without).

Until the link takes over, a frame of the bookie may have 64 KiB. A dialogue has a bounded number of
rounds and a limit of time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque

from dlog.chance import Chance
from dlog.errors import AuthError, ConfigError, DlogError, FormatError
from dlog.ledger.bookkeeper.auth import BookieAuth
from dlog.ledger.bookkeeper.transport import Link
from dlog.limits import BOOKIE_AUTH_BYTES_MAX
from dlog.patience import AwakeTimeout
from dlog.tls import TlsContexts
from dlog.wire.bookie_auth import AUTH_DISABLED, AuthMessage
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_frame import FrameSplitter
from dlog.wire.bookie_v3 import Operation, pack_auth, pack_start_tls
from dlog.wire.bookie_v3_replies import Response, parse_response

AUTH_ROUNDS_MAX = 8
_HUNG_UP = "hung up before it was asked anything: it is starting, or did not like what it heard"
_UNASKED_MAX = 4  # frames that may wait to be looked at


class Refused(Exception):
    """This connection must not be used, and why."""


class Entrance:
    def __init__(self, *, tls: TlsContexts | None, auth: BookieAuth | None, chance: Chance) -> None:
        if auth is not None and auth.needs_tls and tls is None:
            raise ConfigError(
                "with DIGEST-MD5 whoever listens learns enough to try passwords at home: use TLS "
                "with it (unsafe_without_tls=True goes without)"
            )
        self._tls = tls
        self._auth = auth
        self._chance = chance

    async def connect(self, link: Link, host: str, port: int, *, timeout_s: float) -> None:
        """Returns when the link has the connection. Raises `Refused`, and what connecting does."""
        hall = _Hall(link.where)
        try:
            async with AwakeTimeout(timeout_s):
                if self._tls is None and self._auth is None:
                    await asyncio.get_running_loop().create_connection(lambda: link, host, port)
                else:
                    await self._through(hall, link, host, port)
        except TimeoutError:
            if hall.has_said_who:
                # Nor does a stock bookie hang up on one whom it does not know.
                raise Refused("does not say that it lets us in: it may know no such user") from None
            raise

    async def _through(self, hall: _Hall, link: Link, host: str, port: int) -> None:
        await asyncio.get_running_loop().create_connection(lambda: hall, host, port)
        transport = hall.transport
        try:
            if self._tls is not None:
                transport = await self._start_tls(hall, self._tls, host)
            if self._auth is not None:
                await self._say_who(hall, self._auth)
            hall.check_quiet()
            if transport.is_closing():  # and the hall is about to hear of it
                raise Refused(_HUNG_UP)
        except BaseException as error:
            hall.transport.abort()
            await asyncio.sleep(0)  # until the loop has closed its socket
            await asyncio.sleep(0)
            if isinstance(error, DlogError):
                raise Refused(error.message) from None
            raise
        transport.set_protocol(link)
        link.connection_made(transport)

    async def _start_tls(self, hall: _Hall, tls: TlsContexts, host: str) -> asyncio.Transport:
        context = tls.current()
        response = await hall.ask(pack_start_tls(1))
        if response.operation is not Operation.START_TLS or response.answer is not Answer.OK:
            raise Refused("offers no TLS, and nothing goes to it without")
        hall.check_quiet()
        hall.go_under_tls()
        try:
            upgraded = await asyncio.get_running_loop().start_tls(
                hall.transport, hall, context, server_hostname=host
            )
        except ssl.SSLCertVerificationError as error:
            raise Refused(f"did not prove who it is: {error.verify_message}") from None
        except ssl.SSLError as error:
            raise Refused(f"ended the TLS handshake: {error.reason or error}") from None
        assert upgraded is not None
        hall.transport = upgraded
        return upgraded

    async def _say_who(self, hall: _Hall, auth: BookieAuth) -> None:
        dialogue = auth.begin(self._chance)
        payload: bytes | None = dialogue.first()
        for txn_id in range(2, 2 + AUTH_ROUNDS_MAX):
            assert payload is not None
            hall.has_said_who = bool(payload)
            response = await hall.ask(pack_auth(txn_id, AuthMessage(auth.plugin, payload)))
            message = response.body
            if response.answer is not Answer.OK or not isinstance(message, AuthMessage):
                raise AuthError("does not let us in: it knows no such user with this password")
            if message.plugin == AUTH_DISABLED:
                raise AuthError("wants no authentication, though every bookie here should")
            if message.plugin != auth.plugin or response.txn_id != txn_id:
                raise AuthError("answers for another way of authentication than was asked")
            payload = dialogue.answer(message.payload, hall.where)
            if payload is None:
                return
        raise AuthError(f"is not satisfied after {AUTH_ROUNDS_MAX} rounds")


class _Hall(asyncio.Protocol):
    """The connection until the link has it: one question at a time."""

    transport: asyncio.Transport

    def __init__(self, where: str) -> None:
        self.where = where
        self.is_lost = False
        self.has_said_who = False
        self._splitter = FrameSplitter(where, body_bytes_max=BOOKIE_AUTH_BYTES_MAX)
        self._came: deque[Response] = deque()
        self._failure: Exception | None = None
        self._news = asyncio.Event()
        self._may_be_unasked = False

    async def ask(self, frame: bytes) -> Response:
        self.transport.write(frame)
        while True:
            while not self._came:
                self._check_failure()
                self._news.clear()
                await self._news.wait()
            response = self._came.popleft()
            if self._may_be_unasked and response.operation is Operation.START_TLS:
                # Stock bookies complain, once and under TLS, that nobody has said yet who we are.
                self._may_be_unasked = False
                continue
            return response

    def check_quiet(self) -> None:
        self._check_failure()
        if self._came or self._splitter.waiting_bytes:
            raise Refused("says more than it was asked")

    def go_under_tls(self) -> None:
        self._splitter = FrameSplitter(self.where, body_bytes_max=BOOKIE_AUTH_BYTES_MAX)
        self._may_be_unasked = True

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.is_lost:
            raise Refused(_HUNG_UP)

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self._failure is not None:
            return
        try:
            self._splitter.feed(data)
            while (run := self._splitter.next_run()) is not None:
                for body in run.bodies():
                    if len(self._came) >= _UNASKED_MAX:
                        raise FormatError(f"{self.where} answers what nobody asked")
                    self._came.append(parse_response(bytes(body), self.where))
        except DlogError as error:
            self._failure = Refused(error.message)
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._news.set()
