"""Programs that end without closing: the right exit code, no hang, and losses are told."""

from __future__ import annotations

import pytest

import dlog
from tests.api.programs import run

NOISE = ("Traceback", "Exception ignored", "never awaited", "destroyed", "Fatal")


def assert_quiet(errors: str) -> None:
    assert not [noise for noise in NOISE if noise in errors], errors


def values(url: str) -> list[bytes | None]:
    with dlog.open_reader("log", url=url) as reader:
        return [message.value for message in reader]


def test_everything_left_open_with_nothing_lost(file_url: str) -> None:
    code, lines, errors = run(
        file_url,
        """
        client = dlog.connect(URL)
        log = client.open_writer("log")
        reader = client.open_reader("log", follow=True)
        other = dlog.open_writer("other", url=URL)
        log.append(b"kept")
        say(len(reader.read()))
        """,
    )
    assert (code, lines) == (0, ["1"])
    assert errors == ""
    assert values(file_url) == [b"kept"]


def test_developers_are_warned_of_what_was_left_open(file_url: str) -> None:
    code, _, errors = run(
        file_url,
        """
        log = dlog.open_writer("log", url=URL)
        log.append(b"kept")
        """,
        "-Wdefault",
    )
    assert code == 0
    assert (
        "ResourceWarning: a writer of log 'log' was dropped without close(): 0 messages" in errors
    )
    assert_quiet(errors)


@pytest.mark.parametrize("ending", ["pass", "sys.exit(3)", "1 / 0"])
def test_a_loss_is_told_at_exit(file_url: str, ending: str) -> None:
    code, _, errors = run(
        file_url,
        f"""
        log = dlog.open_writer("log", url=URL)
        log.append(b"kept")
        freeze_disk()
        tickets = [log.submit(b"lost") for _ in range(7)]
        {ending}
        """,
    )
    assert code == {"pass": 0, "sys.exit(3)": 3, "1 / 0": 1}[ending]
    assert "7 messages were not acknowledged" in errors
    assert ("ZeroDivisionError" in errors) == (ending == "1 / 0")
    assert "Exception ignored" not in errors
    there = values(file_url)
    assert there[0] == b"kept"
    assert set(there[1:]) <= {b"lost"}


def test_dying_within_with_flushes(file_url: str) -> None:
    code, _, errors = run(
        file_url,
        """
        with dlog.open_writer("log", url=URL) as log:
            for number in range(1000):
                log.submit(b"%d" % number)
            1 / 0
        """,
        "-Wdefault",
    )
    assert code == 1
    assert errors.strip().endswith("ZeroDivisionError: division by zero")
    assert "Warning" not in errors
    assert values(file_url) == [b"%d" % number for number in range(1000)]


def test_a_thread_opens_a_log_after_the_end_of_the_program(file_url: str) -> None:
    """What ends before a program waits for its threads, they do without."""
    code, lines, errors = run(
        file_url,
        """
        import concurrent.futures.thread as pools

        def work():
            while not pools._shutdown:
                pass
            with dlog.open_writer("log", url=URL) as log:
                log.append_many([b"x" * 1000] * 100)
            with dlog.open_reader("log", url=URL) as reader:
                say(len(list(reader)))

        threading.Thread(target=work).start()
        """,
    )
    assert errors == ""
    assert (code, lines) == (0, ["100"])


@pytest.mark.parametrize("daemon", [True, False])
def test_threads_that_still_work_when_the_program_ends(file_url: str, daemon: bool) -> None:
    """A thread that appends, one that follows, and one that leaves by sys.exit."""
    code, lines, errors = run(
        file_url,
        f"""
        log = dlog.open_writer("log", url=URL)
        reader = dlog.open_reader("log", url=URL, follow=True)
        begun = threading.Barrier(4)

        def append():
            begun.wait()
            for number in range(300):
                log.append(b"x")

        def follow():
            begun.wait()
            for message in reader:
                if message.seq == 299:
                    return

        def leave():
            begun.wait()
            log.append(b"x")
            sys.exit(5)

        for work in (append, follow, leave):
            threading.Thread(target=work, daemon={daemon}).start()
        begun.wait()
        say("end")
        """,
    )
    assert (code, lines) == (0, ["end"])
    assert "Fatal" not in errors
    assert "Exception ignored" not in errors
    assert len(values(file_url)) <= 301
    if not daemon:
        assert len(values(file_url)) == 301
        assert errors == ""


def test_an_async_program_that_forgets_to_close(file_url: str) -> None:
    code, _, errors = run(
        file_url,
        """
        async def main():
            log = await dlog.aio.open_writer("log", url=URL)
            reader = await dlog.aio.open_reader("log", url=URL, follow=True)
            await log.append(b"kept")
            say(len(await reader.read()))

        asyncio.run(main())
        say("end")
        """,
    )
    assert code == 0
    assert errors == ""
    assert values(file_url) == [b"kept"]


def test_an_async_program_that_loses_messages_is_told(file_url: str) -> None:
    code, _, errors = run(
        file_url,
        """
        async def main():
            log = await dlog.aio.open_writer("log", url=URL)
            await log.append(b"kept")
            freeze_disk()
            for _ in range(7):
                await log.submit(b"lost")

        asyncio.run(main())
        """,
    )
    assert code == 0
    assert "7 messages were not acknowledged" in errors
    assert "Exception ignored" not in errors


def test_a_cancelled_async_program_flushes_on_its_way_out(file_url: str) -> None:
    code, lines, errors = run(
        file_url,
        """
        async def main():
            async with dlog.aio.open_writer("log", url=URL) as log:
                for number in range(100):
                    await log.submit(b"%d" % number)
                asyncio.current_task().cancel()
                await asyncio.sleep(0)

        try:
            asyncio.run(main())
        except asyncio.CancelledError:
            say("cancelled")
        """,
        "-Wdefault",
    )
    assert (code, lines, errors) == (0, ["cancelled"], "")
    assert values(file_url) == [b"%d" % number for number in range(100)]
