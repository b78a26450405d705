"""The MetaStore on ZooKeeper: one tree for all machines.

This module says how each call of the contract is made of ZooKeeper's; `zookeeper_client` holds the
session, `zookeeper_watch`, `zookeeper_names` and `zookeeper_errors` what their names say. Only
`zookeeper_client`, `zookeeper_errors` and `zookeeper_acl` know kazoo.

**Versions** are transaction numbers: the one that last wrote the node. They grow over the whole
tree and never come again, while ZooKeeper's own counter per node starts at 0 with each new node of
a path. The server compares only that counter, though, so a write *looks, then leaps*: it reads the
node, compares the transaction, and sends the write on the counter it read. Between the two the node
might be deleted and made again, and its counter come to the same number. Therefore every delete
also writes the node at `root`, and every write carries, in one transaction, the check that `root`
was not written since before the look: if it was, look again. (Nodes that end with their session,
and those that others delete with tools of their own, do not write `root`; a write that met such a
new node under an old path is recognised by its answer, and `Broken`.) A node that was just read or
written was looked at: what the connection keeps of that (`zookeeper_looks`) saves the next write a
round trip.

**Doubt.** A write whose answer was lost ends in an error with outcome UNKNOWN. Only the end of a
session settles one: what it made or did not make of ephemeral nodes is gone.
"""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from dlog.errors import (
    AlreadyExists,
    AuthError,
    ConfigError,
    Conflict,
    DlogError,
    ForkedHandle,
    LeaseLost,
    NotFound,
    Outcome,
    Timeout,
    TooLarge,
    Unavailable,
    WriterClosed,
    check,
)
from dlog.findings import Finding, Rights
from dlog.limits import META_TIMEOUT_MS_DEFAULT, SESSION_TIMEOUT_MS_DEFAULT
from dlog.meta.store import Created, Versioned, check_path, parent_of
from dlog.meta.zookeeper_acl import acl_of
from dlog.meta.zookeeper_client import Link, Send, Stage, user_and_password
from dlog.meta.zookeeper_errors import culprit, root_is_written, translated
from dlog.meta.zookeeper_examine import examine, is_private, rights_of
from dlog.meta.zookeeper_looks import Look, Root
from dlog.meta.zookeeper_names import (
    check_request,
    from_wire,
    name_from_wire,
    split_hosts,
    to_wire,
)
from dlog.meta.zookeeper_watch import Bell, Sight, ZooKeeperWatch
from dlog.secret import Provider, Secret
from dlog.tls import TlsContexts, TlsOptions
from dlog.together import together

BELLS_KEPT = 64  # of paths nobody watches just now

# Sends the second half of a write.
Leap = Callable[[Any, Look], Any]


class ZooKeeperSession:
    def __init__(self) -> None:
        self.id = ""
        self.lost = asyncio.Event()


class ZooKeeperMetaStore:
    """One session on the ensemble at `hosts` (`h1:2181,h2:2181`, and `/chroot` behind them if all
    paths shall stand below one). Nothing is connected before the first call, or `open()`, which
    only exists to hear of trouble early. Belongs to the loop of its first call.

    `root` is a node that all writers of the tree share and can write; the first write makes it.
    With `auth`, a secret of the form user:password, or a certificate of our own in `tls`, every
    node is made so that only its creator may touch it, and who is named in `acl` (see
    `zookeeper_acl`). With `tls` no other connections are made.

    A session that is lost is lost: `session()` keeps saying so and ephemeral nodes are refused with
    `LeaseLost`. All other calls go on, over a new connection.
    """

    def __init__(
        self,
        hosts: str,
        *,
        root: str = "/",
        timeout_ms: float = META_TIMEOUT_MS_DEFAULT,
        session_timeout_ms: int = SESSION_TIMEOUT_MS_DEFAULT,
        auth: Secret | bytes | str | Provider | None = None,
        tls: TlsOptions | None = None,
        acl: str | None = None,
        unsafe_open_nodes: bool = False,
    ) -> None:
        self._home: Link | None = None  # owns the session
        self._stand_in: Link | None = None  # for everything else, once the session is lost
        self._hosts, self._chroot = split_hosts(hosts)
        if session_timeout_ms <= 0 or timeout_ms <= 0:
            raise ConfigError("the time-outs of a metadata store are above 0")
        self._root = to_wire(self._chroot, check_path(root))
        self._timeout_s = timeout_ms / 1000
        self._session_timeout_ms = session_timeout_ms
        self._auth = None if auth is None else Secret.of(auth)
        if self._auth is not None:
            user_and_password(self._auth)  # said now what each connection would meet
        self._tls = None if tls is None else TlsContexts(tls)
        self._acl = acl_of(
            has_credentials=auth is not None or (tls is not None and tls.cert_file is not None),
            others=acl,
            unsafe_open=unsafe_open_nodes,
        )
        self._pid = os.getpid()
        self._closed = False
        self._session = ZooKeeperSession()
        self._root_is_there = False
        self._bells: dict[str, Bell] = {}
        self._bells_bound = BELLS_KEPT
        self._deleting = asyncio.Lock()

    async def open(self) -> None:
        await self._any_link(self._deadline_s())

    async def get(self, path: str) -> Versioned:
        wire = self._wire(path)
        deadline_s = self._deadline_s()
        link = await self._any_link(deadline_s)
        root, (value, stat) = await self._behind_root(
            link, lambda zk: zk.get_async(wire), path, deadline_s
        )
        if root is not None:
            link.looks.saw(wire, root, stat)
        return Versioned(value or b"", stat.mzxid)

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> Created:
        """Numbers of sequential nodes are counted by the parent, and begin again only if the parent
        itself is deleted and made again."""
        made, _ = await self._create(path, value, ephemeral=ephemeral, sequential=sequential)
        return made

    async def wall_us(self, path: str) -> int:
        """Of the server that leads, to the millisecond: it stamps what is made."""
        made, stat = await self._create(path, b"", ephemeral=True, sequential=True)
        await self.delete(made.path, made.version)
        return int(stat.ctime) * 1000

    async def _create(
        self, path: str, value: bytes, *, ephemeral: bool, sequential: bool
    ) -> tuple[Created, Any]:
        wire = self._wire(path)
        check_request(path, wire, self._root, value)
        if path == "/":
            raise AlreadyExists("the root is always there", path=path)
        deadline_s = self._deadline_s()
        while True:
            link = await self._any_link(deadline_s, writes=True)

            def send(zk: Any, acl: Any = link.acl) -> Any:
                return zk.create_async(
                    wire, value, acl, ephemeral=ephemeral, sequence=sequential, include_data=True
                )

            try:
                if ephemeral:
                    made, stat = await self._of_our_session(send, path, deadline_s)
                else:
                    made, stat = await link.ask(send, path=path, writes=True, deadline_s=deadline_s)
            except NotFound:
                await _make(link, parent_of(wire), path, deadline_s)
            else:
                break
        created = Created(from_wire(self._chroot, made), int(stat.mzxid))
        if sequential and not made[len(wire) :].isdecimal():
            # The parent counts in 31 bits and went on below zero.
            await self.delete(created.path, created.version)
            raise TooLarge(f"the numbers of sequential nodes are used up: {path}", path=path)
        return created, stat

    async def put(self, path: str, value: bytes, version: int) -> int:
        wire = self._wire(path)
        check_request(path, wire, self._root, value)

        def leap(zk: Any, look: Look) -> Any:
            both = zk.transaction()
            both.check(self._root, look.root.version)
            both.set_data(wire, value, look.counter)
            return both.commit_async()

        link, look, answers = await self._look_then_leap(path, version, leap, self._deadline_s())
        after = answers[1]
        check(after.czxid == look.created, "a write met the node it was meant for", path)
        if wire == self._root:
            link.looks.clear()
        else:
            link.looks.saw(wire, look.root, after)
        return int(after.mzxid)

    async def delete(self, path: str, version: int) -> None:
        wire = self._wire(path)
        if path == "/" or wire == self._root:
            raise ConfigError(f"the root of a metadata tree stays: {path}", path=path)
        deadline_s = self._deadline_s()

        def leap(zk: Any, look: Look) -> Any:
            both = zk.transaction()
            both.set_data(self._root, look.root.value, look.root.version)
            both.delete(wire, look.counter)
            return both.commit_async()

        try:
            async with asyncio.timeout_at(deadline_s):
                # One at a time: of two at once only one would find the root unwritten.
                await self._deleting.acquire()
        except TimeoutError:
            raise Timeout(
                f"out of time behind other deletes: {path}",
                outcome=Outcome.NOT_HAPPENED,
                path=path,
            ) from None
        try:
            link, _, _ = await self._look_then_leap(path, version, leap, deadline_s)
            link.looks.clear()  # the root in them is written
        finally:
            self._deleting.release()

    async def children(self, path: str) -> list[str]:
        wire = self._wire(path)
        names = await self._read(lambda zk: zk.get_children_async(wire), path, self._deadline_s())
        return sorted(map(name_from_wire, names))

    def watch(self, path: str) -> ZooKeeperWatch:
        self.check_open()
        return ZooKeeperWatch(self, check_path(path))

    async def sync(self) -> None:
        """ZooKeeper's `sync`: the server we talk to catches up with the leader."""
        await self._sync("/", self._deadline_s())

    @property
    def session_timeout_s(self) -> float:
        return self._session_timeout_ms / 1000

    async def session(self) -> ZooKeeperSession:
        self.check_open()
        link = self._home_link()
        if not self._session.id:
            if link.session_id is None:
                await link.connected("/", self._deadline_s())
            self._session.id = link.session_id or ""
        return self._session

    async def close(self) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._session.lost.set()
        for bell in self._bells.values():
            bell.ring()
        links = [link for link in (self._home, self._stand_in) if link is not None]
        await asyncio.gather(*(link.close() for link in links))

    def __del__(self) -> None:
        links = [link for link in (self._home, self._stand_in) if link is not None]
        if not links or self._closed or os.getpid() != self._pid:
            return
        # Ending takes a thread, and a process that ends starts none: it would wait for it forever.
        for link in links if not sys.is_finalizing() else ():
            link.stop()
        warnings.warn(
            f"the metadata store at {self._hosts} was dropped without close()",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )

    # --- For who looks the place over ---

    async def examine(self) -> list[Finding]:
        """Over connections of its own."""
        self.check_open()
        return await examine(
            self._hosts,
            self._root,
            lambda hosts: self._new_link(lambda: None, hosts),
            self._tls,
            owns_nodes=self.owns_nodes,
        )

    @property
    def is_private(self) -> bool:
        return is_private(self._hosts)

    @property
    def owns_nodes(self) -> bool:
        return rights_of(self._acl) == Rights(False, False)

    async def rights(self, path: str) -> Rights:
        wire = self._wire(path)
        acls, _ = await self._read(lambda zk: zk.get_acls_async(wire), path, self._deadline_s())
        return rights_of(acls)

    # --- For watches ---

    def check_open(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle("this metadata store was opened in another process, before a fork")
        if self._closed:
            raise WriterClosed("the metadata store is closed")

    def bell(self, path: str) -> Bell:
        found = self._bells.get(path)
        if found is None:
            if len(self._bells) >= self._bells_bound:
                self._bells = {at: bell for at, bell in self._bells.items() if not bell.is_idle}
                self._bells_bound = max(BELLS_KEPT, 2 * len(self._bells))
            found = self._bells[path] = Bell()
        return found

    async def look(self, path: str) -> Sight | None:
        wire = self._wire(path)
        return _sight(await self._read(lambda zk: zk.exists_async(wire), path, self._deadline_s()))

    async def arm_and_look(self, path: str, bell: Bell) -> Sight | None:
        wire, deadline_s = self._wire(path), self._deadline_s()
        bell.armed = True
        try:
            stat = await self._read(
                lambda zk: zk.exists_async(wire, watch=bell.on_event), path, deadline_s
            )
            if stat is not None:
                _, stat = await self._read(
                    lambda zk: zk.get_children_async(wire, watch=bell.on_event, include_data=True),
                    path,
                    deadline_s,
                )
        except NotFound:
            return None  # deleted between the two, and the bell rings for that
        except BaseException:
            bell.ring()  # nobody knows what of it is armed
            raise
        return _sight(stat)

    # --- How calls are made ---

    async def _look_then_leap(
        self, path: str, version: int, leap: Leap, deadline_s: float
    ) -> tuple[Link, Look, list[Any]]:
        """Change the node if it is at `version`: what it was, and what the server answered."""
        wire = self._wire(path)
        link = await self._any_link(deadline_s, writes=True)
        look = link.looks.of(wire, version, self._now_s())
        is_fresh = False
        while True:
            if look is None:
                link, look = await self._look(wire, path, deadline_s)
            if look is not None and look.written == version:

                def send(zk: Any, look: Look = look) -> Any:
                    return leap(zk, look)

                link.looks.forget(wire)
                answers = await link.ask(send, path=path, writes=True, deadline_s=deadline_s)
                refused = culprit(answers)
                if refused is None:
                    return link, look, answers
                index, error = refused
                if index == 1 or not root_is_written(error):
                    about = path if index == 1 else self._root
                    raise translated(error, hosts=self._hosts, path=about, writes=True) from error
            elif is_fresh and look is None:
                raise NotFound(f"there is no node {path}", path=path)
            elif is_fresh:
                raise Conflict(f"{path} is at another version", path=path)
            # What we looked at may be old: our server may lag behind the others.
            await self._sync(path, deadline_s)
            look, is_fresh = None, True

    async def _look(self, wire: str, path: str, deadline_s: float) -> tuple[Link, Look | None]:
        link = await self._any_link(deadline_s, writes=True)
        link.looks.root = None
        root, seen = await self._behind_root(
            link, lambda zk: zk.exists_async(wire), path, deadline_s
        )
        if seen is None:
            return link, None
        if root is None:  # raises why; or it is there by now
            await self._read(lambda zk: zk.get_async(self._root), path, deadline_s)
            return await self._look(wire, path, deadline_s)
        return link, link.looks.saw(wire, root, seen)

    async def _behind_root(
        self, link: Link, send: Send, path: str, deadline_s: float
    ) -> tuple[Root | None, Any]:
        """A read, and the root as it was seen before: just now, or with a question sent just ahead
        of the other. One connection answers in order."""
        read = link.ask(send, path=path, writes=False, deadline_s=deadline_s)
        root = link.looks.root
        if root is not None and root.is_new(self._now_s()):
            return root, await read
        seen_root, answer = await together(self._see_root(link, deadline_s), read)
        return seen_root, answer

    async def _see_root(self, link: Link, deadline_s: float) -> Root | None:
        """None where it is not there yet, or not ours to see: then nothing is ours to write."""
        try:
            value, stat = await link.ask(
                lambda zk: zk.get_async(self._root),
                path=self._root,
                writes=False,
                deadline_s=deadline_s,
            )
        except (NotFound, AuthError):
            return None
        root = link.looks.root = Root(value or b"", stat.version, self._now_s())
        return root

    async def _of_our_session(self, send: Send, path: str, deadline_s: float) -> Any:
        """A call that makes an ephemeral node. If its answer was lost together with the session,
        it is certain again: whatever it made is gone."""
        link = self._home_link()
        lost: DlogError | None = None
        if not self._session.lost.is_set():
            try:
                return await link.ask(send, path=path, writes=True, deadline_s=deadline_s)
            except (Unavailable, Timeout) as error:
                if await link.wait_settled(deadline_s) is not Stage.OVER:
                    raise
                lost = error
        self.check_open()
        raise LeaseLost(f"the session is lost, and owns nothing: {path}", path=path) from lost

    async def _read(self, send: Send, path: str, deadline_s: float) -> Any:
        link = await self._any_link(deadline_s)
        return await link.ask(send, path=path, writes=False, deadline_s=deadline_s)

    async def _sync(self, path: str, deadline_s: float) -> None:
        await self._read(lambda zk: zk.sync_async(self._chroot or "/"), path, deadline_s)

    async def _any_link(self, deadline_s: float, *, writes: bool = False) -> Link:
        """For what needs no session of ours. The root is there for who writes. Who only reads makes
        none: it would be the reader's, who may have other credentials than writers will. (A tree
        has to begin somewhere, though, also below a chroot.)"""
        self.check_open()
        link = self._home_link()
        # One that is about to connect may find its session lost.
        if await link.wait_settled(deadline_s) is Stage.OVER:
            if self._stand_in is None or self._stand_in.stage is Stage.OVER:
                self._stand_in = self._new_link(lambda: None)
            link = self._stand_in
        await link.connected(self._root, deadline_s)
        self.check_open()
        if not self._root_is_there and (writes or self._root == self._chroot):
            found = await link.ask(
                lambda zk: zk.exists_async(self._root),
                path=self._root,
                writes=False,
                deadline_s=deadline_s,
            )
            if found is None:
                await _make(link, self._root, self._root, deadline_s)
            self._root_is_there = True
        return link

    def _home_link(self) -> Link:
        if self._home is None:
            self._home = self._new_link(self._session.lost.set)
        return self._home

    def _new_link(self, on_over: Callable[[], None], hosts: str = "") -> Link:
        return Link(
            hosts or self._hosts,
            session_timeout_ms=self._session_timeout_ms,
            auth=self._auth,
            tls=self._tls,
            acl=self._acl,
            on_over=on_over,
        )

    def _wire(self, path: str) -> str:
        self.check_open()
        return to_wire(self._chroot, check_path(path))

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _deadline_s(self) -> float:
        return self._now_s() + self._timeout_s


async def _make(link: Link, wire: str, path: str, deadline_s: float) -> None:
    """An empty node and whatever is missing above it. (Not a write of the caller's: if the answer
    is lost, the node that was asked for is still certainly not there.)"""
    missing = [wire]
    while missing:

        def send(zk: Any, wire: str = missing[-1]) -> Any:
            return zk.create_async(wire, b"", link.acl)

        try:
            await link.ask(send, path=path, writes=False, deadline_s=deadline_s)
        except AlreadyExists:
            missing.pop()
        except NotFound:
            missing.append(parent_of(missing[-1]))
        else:
            missing.pop()


def _sight(stat: Any) -> Sight | None:
    return None if stat is None else Sight(stat.czxid, stat.mzxid, stat.pzxid)
