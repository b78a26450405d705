"""One kazoo client as one session, spoken to from an asyncio loop.

kazoo runs a thread that owns the socket; every call goes to it by a queue, and every answer comes
back by `call_soon_threadsafe`. What kazoo leaves open is settled here:

- *A session is not replaced behind its owner's back.* kazoo would begin a new one as soon as the
  old is lost, and run calls meant for the old one in it: an ephemeral node could come to life that
  nobody owns. A lost session seals its link; the store makes another one for what needs no session.
- *Nothing is queued for a connection that is down*, to be sent whenever it comes back: a call waits
  for the connection here, and if it waits in vain, it certainly did not happen.
- *The queue is bounded.* Calls that ran out of time still stand in it, so a place is free only when
  kazoo has answered; a flood would otherwise block the loop on kazoo's wake-up socket.
- *No credentials in logs*: kazoo writes whole requests at debug level. It does not hold them
  either: they are asked for at each connection.
- *TLS by our rules*: kazoo's own would trust the operating system's authorities beside the one that
  was named, check no host's name unless told to, speak TLS 1.0, and never read a renewed
  certificate. So the socket it gets is wrapped here, for whichever address it tries.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import functools
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, WriterNotClosedException
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import ACL

from dlog.errors import (
    AuthError,
    ConfigError,
    DlogError,
    Handle,
    Outcome,
    Timeout,
    Unavailable,
)
from dlog.meta.zookeeper_errors import connection_is_lost, translated
from dlog.meta.zookeeper_looks import Looks
from dlog.secret import Secret
from dlog.tls import TlsContexts

IN_FLIGHT_MAX = 128  # each takes a little of a socket buffer that holds about 270
RECONNECT_FIRST_S, RECONNECT_LAST_S = 0.05, 1.0
CLOSE_PATIENCE_S = 1.0  # for the server's word on the closing, and again for the thread to end

Send = Callable[[KazooClient], Any]


class Stage(enum.Enum):
    CONNECTING = "connecting"  # also again, after a connection was lost: everything is in doubt
    CONNECTED = "connected"
    REFUSED = "refused"  # the server does not know our credentials
    OVER = "over"  # the session is gone, and its ephemeral nodes with it


class Link:
    """One session. Belongs to the loop it is made on."""

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_ms: int,
        auth: Secret | None,
        tls: TlsContexts | None,
        acl: list[ACL],
        on_over: Callable[[], None],
    ) -> None:
        self.hosts = hosts
        self.stage = Stage.CONNECTING
        self.session_id: str | None = None
        self.looks = Looks()
        self.acl = acl  # of the nodes that are made
        self._loop = asyncio.get_running_loop()
        self._on_over = on_over
        self._moved = asyncio.Event()
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._handler = _Handler(tls, auth)
        self._client = KazooClient(
            hosts=hosts,
            timeout=session_timeout_ms / 1000,
            handler=self._handler,
            use_ssl=tls is not None,  # only for its log: the handler makes the connection
            connection_retry=KazooRetry(
                max_tries=-1, delay=RECONNECT_FIRST_S, max_delay=RECONNECT_LAST_S
            ),
            logger=_Discreet(logging.getLogger("dlog.meta.zookeeper"), {}),
        )
        if auth is not None:  # only now: given before, kazoo would keep what it finds
            self._client.auth_data = _Credentials(auth, self._handler)
        self._client.add_listener(self._on_thread)
        self._ended = asyncio.Event()
        self._ending: threading.Thread | None = None
        self._client.start_async()

    async def ask(self, send: Send, *, path: str, writes: bool, deadline_s: float) -> Any:
        """Send one call and return its answer; `writes` if it would change the node at `path`."""
        answer = await self._sent(send, path, deadline_s)
        try:
            async with asyncio.timeout_at(deadline_s):
                return await answer
        except TimeoutError:
            outcome = Outcome.UNKNOWN if writes else Outcome.NOT_HAPPENED
            raise Timeout(
                f"no answer from ZooKeeper at {self.hosts} in time: {path}",
                outcome=outcome,
                path=path,
            ) from None
        except DlogError:
            raise
        except Exception as error:  # whatever kazoo was told or could not parse
            raise translated(error, hosts=self.hosts, path=path, writes=writes) from error

    async def wait_settled(self, deadline_s: float) -> Stage:
        """Until connected, or certain that it never will be again; `CONNECTING` if neither is
        known in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline_s):
                while self.stage is Stage.CONNECTING:
                    await self._moved.wait()
        return self.stage

    async def connected(self, path: str, deadline_s: float) -> None:
        """Returns when it is, and raises when it will not be, or not in time."""
        stage = await self.wait_settled(deadline_s)
        if stage is Stage.REFUSED:
            raise AuthError(
                f"ZooKeeper at {self.hosts} refused the credentials", handle=Handle.DEAD
            )
        if stage is not Stage.CONNECTED:
            raise self._away("no connection", path)

    def stop(self) -> None:
        """Begin to end. On a thread: kazoo waits for its own."""
        self._handler.sealed = True
        if self._ending is None:
            self._ending = threading.Thread(
                target=self._end, name="dlog-zookeeper-end", daemon=True
            )
            self._ending.start()

    async def close(self) -> None:
        """End the session. Bounded, also when the server does not answer; then its ephemeral nodes
        go when the session expires."""
        self.stop()
        if not await self._ended_within(CLOSE_PATIENCE_S):
            self._handler.cut()
            await self._ended_within(CLOSE_PATIENCE_S)

    async def _ended_within(self, patience_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._ended.wait()
        if self._ended.is_set() and self._ending is not None:
            self._ending.join(patience_s)  # it has nothing left to do but to end
        return self._ended.is_set()

    def _end(self) -> None:
        """On the ending thread."""
        try:
            self._client.stop()
            self._client.close()
        except (OSError, WriterNotClosedException):
            return  # kazoo's thread does not end; it is a daemon, and holds nothing but a socket
        call_on(self._loop, self._ended.set)

    async def _sent(self, send: Send, path: str, deadline_s: float) -> asyncio.Future[Any]:
        """Hand it to kazoo, as soon as there is a connection and a place."""
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._slots.acquire()
        except TimeoutError:
            raise self._away(f"{IN_FLIGHT_MAX} calls wait for an answer", path) from None
        try:
            await self.connected(path, deadline_s)
            if self._loop.time() >= deadline_s:
                raise Timeout(
                    f"out of time before it was sent: {path}",
                    outcome=Outcome.NOT_HAPPENED,
                    path=path,
                )
            answer: asyncio.Future[Any] = self._loop.create_future()
            result = send(self._client)
        except BaseException:
            self._slots.release()
            raise
        self._unanswered.add(answer)
        result.rawlink(lambda done: call_on(self._loop, lambda: self._settle(answer, done)))
        return answer

    def _away(self, why: str, path: str) -> Unavailable:
        why = f"{why}: {self._handler.trouble}" if self._handler.trouble else why
        return Unavailable(
            f"ZooKeeper at {self.hosts} cannot be reached ({why})", path=path, missing=[self.hosts]
        )

    def _settle(self, answer: asyncio.Future[Any], done: Any) -> None:
        if answer not in self._unanswered:
            return  # kazoo says it twice when a client is closed under a call
        self._unanswered.discard(answer)
        self._slots.release()
        if self.stage is Stage.CONNECTED and connection_is_lost(done.exception):
            self._move(Stage.CONNECTING, None)  # kazoo tells the calls before it tells us
        if answer.done():
            return  # nobody waits any more
        if done.exception is None:
            answer.set_result(done.value)
        else:
            answer.set_exception(done.exception)

    def _on_thread(self, state: str) -> None:
        """On kazoo's thread, at each change of its state, before it tells the calls."""
        stage, session_id = Stage.CONNECTING, None
        if state == KazooState.CONNECTED:
            stage, session_id = Stage.CONNECTED, f"0x{self._client.client_id[0] & (1 << 64) - 1:x}"
        elif state == KazooState.LOST:
            self._handler.sealed = True
            refused = self._client.client_state == KeeperState.AUTH_FAILED
            stage = Stage.REFUSED if refused else Stage.OVER
        call_on(self._loop, functools.partial(self._move, stage, session_id))

    def _move(self, stage: Stage, session_id: str | None) -> None:
        self.stage = stage
        self.session_id = session_id or self.session_id
        self._moved.set()
        self._moved = asyncio.Event()
        if stage is Stage.OVER:
            self.stop()
            self._on_over()


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads, less two: callbacks only hand things to the loop, so they run at once on the
    thread that has them. (kazoo calls back directly while a handler does not count as running.)"""

    def __init__(self, tls: TlsContexts | None, auth: Secret | None) -> None:
        super().__init__()
        self.sealed = False
        self.trouble = ""  # why the last connection came to nothing, where that is ours to say
        self._tls = tls
        self._auth = auth
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """No workers."""

    def stop(self) -> None:
        """No workers, and nothing to do at exit."""

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def create_connection(self, *args: Any, **kwargs: Any) -> socket.socket:
        if self.sealed:
            raise OSError("this session is over")
        self._check_credentials()
        made: socket.socket
        if self._tls is None:
            made = super().create_connection(*args, **kwargs)
        else:
            made = self._secure(self._tls, **kwargs)
        self.trouble = ""
        self._socket = made
        return made

    def _check_credentials(self) -> None:
        """Before there is a connection: who waits for one is told what is wrong. On one that is
        made and dropped again they would only hear that it was lost."""
        if self._auth is not None:
            try:
                user_and_password(self._auth)
            except ConfigError as error:
                self.trouble = error.message
                raise OSError("no credentials") from None

    def _secure(
        self, tls: TlsContexts, address: tuple[str, int], hostname: str, timeout: float, **_: Any
    ) -> socket.socket:
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = tls.current()
            context.sslsocket_class = _TlsSocket
            secure = context.wrap_socket(plain, server_hostname=hostname)
        except BaseException as error:
            plain.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                self.trouble = f"{hostname} did not prove who it is: {error.verify_message}"
            elif isinstance(error, ssl.SSLError):
                self.trouble = f"{hostname} ended the TLS handshake: {error.reason or error}"
            raise
        return secure

    def cut(self) -> None:
        """Wake a thread that waits for a server which does not answer."""
        if self._socket is not None:
            with suppress(OSError):  # closed already
                # The socket's own, also under TLS: that of `ssl` lets go of what its thread uses.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _TlsSocket(ssl.SSLSocket):
    """One whose peer was gone before the handshake is closed, and said to be. Python's own would be
    left open, or given out as if all was well, and without TLS."""

    def getpeername(self) -> Any:
        try:
            return super().getpeername()
        except OSError:
            self.close()
            raise ConnectionResetError(errno.ECONNRESET, "reset before the handshake") from None


class _Credentials:
    """What kazoo goes through when it has a connection."""

    def __init__(self, auth: Secret, handler: _Handler) -> None:
        self._auth = auth
        self._handler = handler

    def __iter__(self) -> Iterator[tuple[str, str]]:
        try:
            yield "digest", user_and_password(self._auth)
        except ConfigError as error:
            self._handler.trouble = error.message
            # What kazoo takes for a lost connection; anything else would end its thread.
            raise ConnectionDropped("no credentials") from None


def user_and_password(auth: Secret) -> str:
    found = auth.reveal_text()
    if all(found.partition(":")):
        return found
    del found  # of a traceback that prints what each frame held
    raise ConfigError("credentials for ZooKeeper are user:password")


class _Discreet(logging.LoggerAdapter[logging.Logger]):
    """kazoo's logger: nothing below INFO, where requests are written out, credentials included."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name is logging's
        return level >= logging.INFO and super().isEnabledFor(level)


def call_on(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """From another thread."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        if not loop.is_closed():
            raise
        # The loop is gone, and with it everybody who waited there.
