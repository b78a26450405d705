"""No secret anywhere it could show: a canary in every option that holds one, while things go well
and while they fail."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import json
import logging
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError

from dlog import trace
from dlog.aio import Client, connect
from dlog.errors import DlogError, Unavailable
from dlog.meta.attended import unattended
from dlog.options import SECRET_OPTIONS
from dlog.secret import Secret
from dlog.testing.canaries import found_in
from dlog.testing.conformance.meta_tools import until
from dlog.testing.faulty_proxy import FaultyProxy
from dlog.wire.bookie_digest import mac_key, master_key
from dlog.wire.ledger_metadata_format import parse_ledger_metadata
from integration.secured.tools import (
    BOOKIE_PASSWORD,
    CANARIES,
    PASSPHRASE,
    PASSWORD,
    SECRETS,
    ZK_PASSWORD,
    Secured,
    filled,
    read_all,
    walk,
)

# What can be made of the ledgers' password, and opens them as well.
KEYS = {
    "master key": master_key(PASSWORD.encode()),
    "key of the digest": mac_key(PASSWORD.encode()),
}


def shown(told: object) -> set[str]:
    text = told if isinstance(told, str) else repr(told)
    keys = {
        name
        for name, key in KEYS.items()
        for form in (repr(key)[2:-1], key.hex(), base64.b64encode(key).decode()[:-2])
        if form in text
    }
    return found_in(text) | keys


class Told:
    """All that was said, by whichever way things are said."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.said: list[str] = []
        self.held: list[str] = []
        self.errors: list[str] = []
        self._caplog = caplog
        for name in (None, "kazoo", "dlog", "asyncio"):
            caplog.set_level(1, logger=name)

    def note(self, *things: object) -> None:
        self.said += [each if isinstance(each, str) else repr(each) for each in things]

    def note_insides(self, *things: Any) -> None:
        """As a debugger shows them. What goes to bookies with each request is there, then."""
        for each in things:
            self.note(each)
            names = getattr(type(each), "__slots__", ())
            inside = vars(each) if hasattr(each, "__dict__") else {}
            self.held += [repr(inside), repr([getattr(each, name, None) for name in names])]

    async def failing(self, doing: Awaitable[object], *, locals_too: bool = True) -> DlogError:
        """It has to fail, and everything about the failure is noted: what a traceback prints that
        prints what each frame held, too."""
        try:
            await doing
        except DlogError as error:
            frames = traceback.TracebackException.from_exception(error, capture_locals=locals_too)
            self.note("".join(frames.format()), error, error.about, str(error.__context__))
            self.errors.append(str(error))
            return error
        raise AssertionError("it should have failed")

    def check(self) -> None:
        assert self._caplog.records
        for record in self._caplog.records:
            self.note(record.getMessage(), record.args, record.exc_text or "")
        self.note(self._caplog.text)
        assert [(shown(each), each[:200]) for each in self.said if shown(each)] == []
        assert [(found_in(each), each[:200]) for each in self.held if found_in(each)] == []


def command_lines() -> list[str]:
    """Of every process of this machine: everybody on it may read them."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return lines


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told(caplog)
    monkeypatch.setattr(trace, "_listener", lambda point, side: told.note(f"{side} {point}"))
    return told


async def test_no_secret_shows_while_all_goes_well(
    secured: Secured, secrets: None, told: Told
) -> None:
    async with connect(secured.url) as client:
        await filled(client, "watched")
        await read_all(client, "watched")
        async with client.open_writer("watched") as writer:
            await writer.append(b"x")
            reader = await client.open_reader("watched", follow=True)
            stores = client._opened
            assert stores is not None
            ledgers: Any = stores.ledgers
            meta: Any = unattended(stores.meta)
            told.note_insides(client, client._url, client._url.options, writer, reader, stores)
            told.note_insides(ledgers, ledgers._links, ledgers._links._entrance, meta, meta._home)
            told.note_insides(meta._home._client, ledgers._passwords, *ledgers._links._open)
            told.note_insides(*ledgers._appenders, *ledgers._readers)
            await reader.close()
            told.note(*command_lines())
        described = await client.admin.describe("watched")
        told.note(described, copy.copy(described), await client.admin.list(), client.url)
        told.note(str(client._url.options), json.dumps(described, default=str))
        for each in (client._url, client._url.options, client):
            with pytest.raises((TypeError, DlogError)):
                pickle.dumps(each)
    told.check()
    assert any("after takeover.committed" in each for each in told.said)
    assert any("java.security.auth.login.config" in each for each in told.said), "the bookies"


async def test_no_secret_shows_while_things_fail(
    secured: Secured, secrets: None, told: Told
) -> None:
    """A bookie killed under a writer, ZooKeeper cut off, away and back, a takeover, a log that is
    not there: the client has all the secrets, and has something to say each time."""
    port = int(secured.hosts.rpartition(":")[2])
    async with FaultyProxy(port) as proxy:
        url = secured.at("failing", hosts=proxy.address)
        async with connect(url, meta_timeout_ms=3_000, session_timeout_ms=4_000) as client:
            await filled(client, "shaken", 3)
            await told.failing(read_all(client, "nowhere"))
            writer = await client.open_writer("shaken")
            await writer.append(b"before")
            victim = secured.cluster.bookies[0]
            victim.kill()
            try:
                for number in range(20):
                    await writer.append(b"%d" % number)
                await writer.rotate()
                proxy.cut()
                await writer.append(b"cut")
                proxy.refuse()
                await told.failing(client.admin.list())
                await told.failing(client.admin.create("none"))
            finally:
                victim.start()
                await asyncio.to_thread(victim.wait_until_serving)
            proxy.accept()

            async def answers() -> bool:
                try:
                    return bool(await client.admin.list())
                except Unavailable:
                    return False

            await until(answers, "ZooKeeper is back")
            async with connect(secured.at("failing")) as other:
                async with other.open_writer("shaken") as new:
                    await new.append(b"taken over")
                    await told.failing(writer.append(b"zombie"))
            await told.failing(writer.append(b"again"))
    told.check()


async def test_no_secret_shows_when_it_is_refused(
    secured: Secured, client: Client, told: Told, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each secret at a server or a ledger that wants another one, and in places where it cannot be
    used as it is."""
    await filled(client, "wanted", 3)
    async with connect(secured.url, password=b"another") as other:
        await filled(other, "anothers", 3)

    async def look(name: str, **options: Any) -> None:
        stranger = secured.of("stranger")

        async def looking() -> None:
            async with connect(stranger, **options) as looker:
                await read_all(looker, name)

        await told.failing(looking())

    def of(value: str) -> Secret:
        return Secret(lambda: value)

    await told.failing(read_all(client, "anothers"))  # ours is not the password of this one
    await look("wanted", password=of("other"), zk_auth=of(SECRETS["DLOG_ZK_AUTH"]))
    await look("wanted", zk_auth=of(f"ben:{ZK_PASSWORD}"))
    patience = {"meta_timeout_ms": 3_000}
    for user in ("bookkeeper-nobody", "stranger"):
        refused = of(f"{user}:{BOOKIE_PASSWORD}")
        await look("wanted", bookie_auth=refused, **patience)
    await look("wanted", zk_auth=of(ZK_PASSWORD))  # without a name
    await look("wanted", bookie_auth=of(BOOKIE_PASSWORD))
    for broken in (PASSWORD.encode() + b"\xff", (PASSWORD * 10_000).encode()):
        await look("wanted", zk_auth=Secret(lambda broken=broken: broken))  # type: ignore[misc]
    wrong: Any = Secret(lambda: bytearray(PASSWORD.encode()))  # type: ignore[arg-type, return-value]
    await look("wanted", zk_auth=wrong)
    open_to_all = tmp_path / "secret"
    open_to_all.write_text("not here")
    open_to_all.chmod(0o644)
    await look("wanted", zk_auth=f"file:{open_to_all}")
    monkeypatch.setenv("DLOG_TLS_KEY_PASSPHRASE", f"not {PASSPHRASE}")

    async def locked() -> None:
        async with connect(secured.url) as looker:
            await read_all(looker, "wanted")

    await told.failing(locked())
    assert len(told.errors) == 12
    told.check()


@pytest.mark.parametrize("name", SECRET_OPTIONS)
async def test_a_secret_in_the_wrong_place_is_not_repeated(
    secured: Secured, told: Told, name: str
) -> None:
    """As text where bytes or a place belong, in a URL, beside an option that nobody knows."""
    asked: list[dict[str, Any]] = [
        {"url": f"{secured.url}&{name}={PASSWORD}"},
        {"url": f"zk://ana:{PASSWORD}@{secured.hosts}/dlog"},
        {"url": secured.url, name: PASSWORD},
        {"url": secured.url, name: Secret(PASSWORD.encode()), "nobody": "knows"},
        {"url": "file:./data", name: Secret(PASSWORD.encode())},
    ]
    for given in asked:

        async def doing(given: dict[str, Any] = given) -> None:
            connect(**given)

        # What stands in the caller's own lines is the caller's: only what we say counts.
        await told.failing(doing(), locals_too=False)
    logging.getLogger("dlog").info("so that there is something to look at")
    told.check()


@pytest.mark.parametrize(
    "words",
    [
        ["describe", "printed"],
        ["describe", "printed", "-o", "json"],
        ["ls"],
        ["tail", "printed"],
        ["segments", "printed"],
        ["tail", "nowhere"],
        ["doctor"],
    ],
)
async def test_no_secret_shows_in_what_the_command_line_prints(
    secured: Secured, client: Client, words: list[str]
) -> None:
    await filled(client, "printed", 3)
    environment = {**os.environ, **SECRETS, "DLOG_URL": secured.url}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "dlog", *words, "-vv", "--debug"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout or done.stderr
    assert not shown(done.stdout + done.stderr)


async def test_what_java_needs_stands_in_the_metadata_and_nowhere_else(
    secured: Secured, client: Client, raw: KazooClient
) -> None:
    """The password of a ledger has to be in its node; the other secrets are in none."""
    await filled(client, "stored")
    holders: dict[str, set[str]] = {}
    for path in walk(raw):
        try:
            value, _ = raw.get(path)
        except (NoAuthError, NoNodeError):  # somebody else's, or gone
            continue
        for canary in CANARIES:
            if canary.encode() in (value or b""):
                holders.setdefault(canary, set()).add(path)
        assert not any(key in (value or b"") for key in KEYS.values()), path
    assert holders.keys() == {PASSWORD}
    assert all(path.startswith("/ledgers/") for path in holders[PASSWORD])
    some = raw.get(next(iter(holders[PASSWORD])))[0]
    metadata = parse_ledger_metadata(some, where="a test")
    assert metadata.password == PASSWORD.encode()
    assert not shown(metadata)
