"""A BookKeeper cluster looked over: its metadata, and every bookie that is registered, over the
connections that entries take. Nothing is written.

A bookie proves that it serves by answering how much disk it has, and that it is no older than batch
reads by answering one, of a ledger that nobody has. Bookies are asked side by side; one that is
silent takes `EXAMINE_TIMEOUT_MS`, and all of them together `EXAMINE_BOOKIES_TIMEOUT_MS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from dlog.certificates import end_of
from dlog.clock import Clock, us_datetime
from dlog.errors import AuthError, DlogError, NotFound, Unavailable
from dlog.findings import Finding, State, Wish
from dlog.ledger.bookkeeper import findings
from dlog.ledger.bookkeeper.findings import BookieFacts
from dlog.ledger.bookkeeper.ledger_nodes import LedgerNodes
from dlog.ledger.bookkeeper.passwords import Passwords
from dlog.ledger.bookkeeper.pool import BookieLinks
from dlog.ledger.bookkeeper.registry import BookieRegistry
from dlog.limits import (
    EXAMINE_BOOKIES_AT_ONCE,
    EXAMINE_BOOKIES_TIMEOUT_MS,
    EXAMINE_TIMEOUT_MS,
    KIB,
)
from dlog.meta.store import MetaStore
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_service_info import TLS_EXTENSION, BookieServiceInfo
from dlog.wire.bookie_v3 import pack_get_bookie_info
from dlog.wire.bookie_v3_replies import BookieInfoBody
from dlog.wire.ledger_paths import (
    COOKIES_NODE,
    INSTANCE_ID_NODE,
    LAYOUT_NODE,
    LEDGER_ID_END,
    parse_layout,
)

TIMEOUT_S = EXAMINE_TIMEOUT_MS / 1000
NO_LEDGER_ID = LEDGER_ID_END // 2 - 1  # above every id that a cluster counts to
_TOLD_OF = {
    Answer.UNAUTHORIZED: "serves nobody who does not say who he is (bookie_auth)",
    Answer.TIMED_OUT: f"takes connections and answers nothing within {TIMEOUT_S:.0f} s",
    Answer.DISCONNECTED: "takes connections and ends them: it is starting, or wants to know who we "
    "are (bookie_auth, TLS)",
}


class Examination:
    """Of one store, whose parts these are."""

    def __init__(
        self,
        meta: MetaStore,
        ledgers_root: str,
        registry: BookieRegistry,
        links: BookieLinks,
        nodes: LedgerNodes,
        passwords: Passwords,
        *,
        has_tls: bool,
        has_auth: bool,
        clock: Clock,
    ) -> None:
        self._meta = meta
        self._root = ledgers_root.rstrip("/")
        self._registry = registry
        self._links = links
        self._nodes = nodes
        self._passwords = passwords
        self._has_tls, self._has_auth = has_tls, has_auth
        self._clock = clock
        self._slots = asyncio.Semaphore(EXAMINE_BOOKIES_AT_ONCE)

    async def run(self, wish: Wish, ledger_ids: Sequence[int]) -> list[Finding]:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = [await self._of_cluster()]
                await self._registry.refresh()
                missing = await self._missing()
        except NotFound:
            told = f"no cluster keeps its metadata at {self._root or '/'} (ledgers=)"
            return [Finding("bookkeeper", State.BAD, told)]
        except (DlogError, TimeoutError) as error:
            told = f"who the bookies are is not to be had: {str(error) or 'no answer in time'}"
            return [Finding("bookkeeper", State.BAD, told)]
        bookies = await self._look_at_all()
        now = us_datetime(self._clock.wall_us())
        found += findings.of_bookies(bookies)
        found += findings.of_missing(missing)
        found.append(findings.of_quorums(bookies, wish))
        if bookies:
            found.append(findings.of_versions(bookies))
        found += findings.of_access(
            bookies, has_tls=self._has_tls, has_auth=self._has_auth, now=now
        )
        found.append(await self._of_passwords(ledger_ids))
        return found

    async def _of_cluster(self) -> Finding:
        path = f"{self._root}/{LAYOUT_NODE}"
        try:
            layout = parse_layout((await self._meta.get(path)).value, where=path).value
        except NotFound:
            await self._meta.children(self._root or "/")
            layout = "no layout yet: the first client chooses"
        except (AuthError, Unavailable):
            raise
        except DlogError as error:
            return Finding("bookkeeper", State.BAD, error.message)
        try:
            raw = (await self._meta.get(f"{self._root}/{INSTANCE_ID_NODE}")).value
            instance = f"instance {raw[:80].decode('utf-8', 'replace')}"
        except NotFound:
            instance = "no instance id"
        return Finding("bookkeeper", State.FINE, f"{self._root or '/'}, {layout}, {instance}")

    async def _missing(self) -> list[str]:
        """Bookies that were here once. Their cookies are removed when they are taken out in
        order."""
        try:
            known = await self._meta.children(f"{self._root}/{COOKIES_NODE}")
        except (NotFound, AuthError):
            return []
        return sorted({*known} - {*self._registry.writable(), *self._registry.read_only()})

    # --- Bookies

    async def _look_at_all(self) -> list[BookieFacts]:
        registered = [BookieFacts(each, True) for each in self._registry.writable()]
        registered += [BookieFacts(each, False) for each in self._registry.read_only()]
        if not registered:
            return []
        tasks = [asyncio.ensure_future(self._look_at(each)) for each in registered]
        try:
            await asyncio.wait(tasks, timeout=EXAMINE_BOOKIES_TIMEOUT_MS / 1000)
        finally:
            late = [task for task in tasks if task.cancel()]
            await asyncio.gather(*late, return_exceptions=True)
        return [
            replace(bookie, trouble="was not asked: the others took all the time")
            if task.cancelled()
            else task.result()
            for bookie, task in zip(registered, tasks, strict=True)
        ]

    async def _look_at(self, bookie: BookieFacts) -> BookieFacts:
        async with self._slots:
            try:
                bookie = await self._read_node(bookie)
                return await self._ask(bookie)
            except DlogError as error:
                told = error.message.removeprefix(f"bookie {bookie.bookie_id} ")
                return replace(bookie, trouble=told)

    async def _read_node(self, bookie: BookieFacts) -> BookieFacts:
        endpoint = await self._registry.resolve(bookie.bookie_id)
        raw = await self._registry.service_info(bookie.bookie_id)
        where = f"the node of bookie {bookie.bookie_id}"
        properties = BookieServiceInfo.from_bytes(raw, where=where).properties if raw else ()
        return replace(
            bookie,
            host=endpoint.host,
            port=endpoint.port,
            offers_tls=TLS_EXTENSION in endpoint.extensions,
            version=next((value for key, value in properties if key == "version"), "")[:40],
        )

    async def _ask(self, bookie: BookieFacts) -> BookieFacts:
        link = await self._links.control(bookie.bookie_id)
        begin_s = self._clock.monotonic_s()
        response = await link.ask(pack_get_bookie_info, timeout_ms=EXAMINE_TIMEOUT_MS)
        answer_ms = (self._clock.monotonic_s() - begin_s) * 1000
        certificate = link.peer_certificate
        bookie = replace(
            bookie, certificate_end=None if certificate is None else end_of(certificate)
        )
        body = response.body
        if response.answer is not Answer.OK or not isinstance(body, BookieInfoBody):
            told = _TOLD_OF.get(response.answer, f"answers: {response.answer.value}")
            return replace(bookie, trouble=told)
        return replace(
            bookie,
            answer_ms=answer_ms,
            free_bytes=body.free_disk_bytes,
            total_bytes=body.total_disk_bytes,
            reads_batches=await self._reads_batches(bookie.bookie_id),
        )

    async def _reads_batches(self, bookie_id: str) -> bool | None:
        """One that does not know what is asked ends the connection."""
        try:
            link = await self._links.data(bookie_id)
            reply = await link.batch_read(
                NO_LEDGER_ID,
                0,
                count_max=1,
                frame_bytes_max=KIB,
                timeout_ms=EXAMINE_TIMEOUT_MS,
            )
        except DlogError:
            return None
        if reply.answer is Answer.DISCONNECTED:
            return False
        return True if reply.answer is Answer.NO_LEDGER else None

    # --- Ledgers

    async def _of_passwords(self, ledger_ids: Sequence[int]) -> Finding:
        refused, count = [], 0
        try:
            async with asyncio.timeout(TIMEOUT_S):
                for ledger_id in ledger_ids:
                    try:
                        self._passwords.digest_of(await self._nodes.read(ledger_id))
                        count += 1
                    except NotFound:
                        continue  # deleted meanwhile
                    except DlogError as error:
                        refused.append(error.message)
        except TimeoutError:
            refused.append("the rest did not answer in time")
        return findings.of_passwords(count, refused, is_given=self._passwords.is_given)
