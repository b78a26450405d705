"""The child of a fork has copies of handles and none of their threads: each use is refused, closing
is silent, and the parent goes on unharmed."""

from __future__ import annotations

import sys

import pytest

from tests.api.programs import run

CHILD = '''
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, on newer Pythons

def refused(what, call):
    began = time.monotonic()
    try:
        call()
    except dlog.ForkedHandle as error:
        quick = time.monotonic() - began < 2
        say(what, "refused" if quick and error.handle is dlog.Handle.DEAD else "late")
    except BaseException as error:
        say(what, repr(error))
    else:
        say(what, "accepted")

def in_child(work):
    """Fork; what the child says goes to the same output. Its exit code, at last."""
    pid = os.fork()
    if pid == 0:
        code = 9
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    say("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
'''

SYNC_CALLS = [
    "log.append(b'c')",
    "log.append(b'c', timeout=1)",
    "log.submit(b'c', headers={'a': b'b'})",
    "log.append_many([b'c'] * 3)",
    "log.append_many([b'c'] * 3, atomic=True)",
    "log.flush()",
    "log.rotate()",
    "log.hand_over()",
    "pending.result()",
    "pending.result(1)",
    "reader.read()",
    "next(iter(reader))",
    "next(reader.batches())",
    "reader.tail()",
    "reader.seek(0)",
    "next(half_way)",
    "client.open_writer('other')",
    "client.open_reader('log')",
    "client.admin.list()",
    "client.admin.tail('log')",
]


def test_every_sync_call_is_refused_in_the_child(url: str) -> None:
    calls = "\n            ".join(f'refused("{call}", lambda: {call})' for call in SYNC_CALLS)
    code, lines, errors = run(
        url,
        CHILD
        + f"""
with dlog.connect(URL) as client:
    log = client.open_writer("log")
    log.append_many([b"p"] * 5)
    reader = client.open_reader("log")
    other_reader = client.open_reader("log")
    half_way = iter(other_reader)
    next(half_way)
    held = threading.Event()
    go_on = threading.Event()

    def on_point(point, side):
        if (point, side) == ("ledger.synced", "before") or point == "append.acked":
            held.set()
            go_on.wait()

    trace.listen(on_point)
    pending = log.submit(b"pending")
    held.wait()

    def child():
        trace.listen(None)
        for _ in range(1):
            {calls}
        log.close()
        reader.close()
        client.close()
        for handle in (log, reader, client):
            repr(handle)

    in_child(child)
    go_on.set()
    trace.listen(None)
    say(pending.result(10).batch_idx)
    log.append(b"parent")
    say(len(list(half_way)))
    say(*[m.value.decode() for m in reader])
    reader.seek(0)
    say(*[m.value.decode() for m in reader])
""",
        "-Wdefault",
    )
    assert lines[: len(SYNC_CALLS)] == [f"{call} refused" for call in SYNC_CALLS]
    assert lines[len(SYNC_CALLS) :] == [
        "child 0",
        "0",
        "4",
        "p p p p p",
        "p p p p p pending parent",
    ]
    assert (code, errors) == (0, "")


ASYNC_CALLS = [
    "log.append(b'c')",
    "log.submit(b'c', key=b'k')",
    "log.append_many([b'c'] * 3)",
    "log.flush()",
    "log.rotate()",
    "log.hand_over()",
    "as_coroutine(pending)",
    "reader.read()",
    "anext(aiter(reader))",
    "anext(half_way)",
    "reader.tail()",
    "reader.seek(0)",
    "as_coroutine(client.open_writer('other'))",
    "as_coroutine(client.open_reader('log'))",
    "client.admin.list()",
]


def test_every_async_call_is_refused_in_the_child(url: str) -> None:
    calls = "\n        ".join(f'refused("{call}", lambda: go({call}))' for call in ASYNC_CALLS)
    code, lines, errors = run(
        url,
        CHILD
        + f"""
async def as_coroutine(awaitable):
    return await awaitable

def go(awaitable):
    async def wait():
        async with asyncio.timeout(10):
            return await awaitable
    return asyncio.run(wait())

async def main():
    client = dlog.aio.connect(URL)
    log = await client.open_writer("log")
    await log.append_many([b"p"] * 5)
    reader = await client.open_reader("log")
    other_reader = await client.open_reader("log")
    half_way = aiter(other_reader)
    await anext(half_way)
    pending = await log.submit(b"pending")

    def child():
        {calls}
        go(log.close())
        go(reader.close())
        go(client.close())

    in_child(child)
    say((await pending).batch_idx)
    await log.append(b"parent")
    say(*[m.value.decode() async for m in reader])
    await client.close()

asyncio.run(main())
""",
        "-Wdefault",
    )
    assert lines[: len(ASYNC_CALLS)] == [f"{call} refused" for call in ASYNC_CALLS]
    assert lines[len(ASYNC_CALLS) :] == ["child 0", "0", "p p p p p"]
    assert (code, errors) == (0, "")


def test_forks_while_other_threads_append_never_hang(url: str) -> None:
    """The lock, the queue and the loop may be anybody's at that moment. Each child tries them."""
    code, lines, errors = run(
        url,
        CHILD
        + """
log = dlog.open_writer("log", url=URL, entry_bytes=4096)
stop = threading.Event()
counts = []

def work():
    count = 0
    while not stop.is_set():
        ticket = log.submit(b"x")
        newest.append(ticket)
        count += 1
        if count % 50 == 0:
            ticket.result()
    counts.append(count)

from collections import deque
newest = deque(maxlen=2000)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()

def child():
    for call in (lambda: log.append(b"c"), log.flush):
        try:
            call()
        except dlog.ForkedHandle:
            pass
        else:
            raise SystemExit(1)
    for ticket in list(newest):
        try:
            ticket.result(5)
        except dlog.ForkedHandle:
            pass
    log.close()

pids = []
for _ in range(15):
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException as error:
            say(repr(error))
            os._exit(1)
        os._exit(0)
    pids.append(pid)
    say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
stop.set()
for thread in threads:
    thread.join()
log.close()
with dlog.open_reader("log", url=URL) as reader:
    say("kept" if sum(1 for _ in reader) == sum(counts) else "lost")
""",
        "-Wignore::DeprecationWarning",
    )
    assert lines == ["0"] * 15 + ["kept"], errors
    assert code == 0
    assert errors == ""


def test_a_child_opens_its_own_and_ends_as_programs_do(file_url: str) -> None:
    """It takes the log over; the parent's handle, of another process, is fenced, as anywhere."""
    code, lines, errors = run(
        file_url,
        CHILD
        + """
log = dlog.open_writer("log", url=URL)
log.append(b"parent")
pid = os.fork()
if pid == 0:
    with dlog.open_writer("log", url=URL) as mine:
        mine.append(b"child")
    with dlog.open_reader("log", url=URL) as reader:
        say(*[m.value.decode() for m in reader])
    sys.exit(4)
say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
try:
    log.append(b"zombie")
except dlog.Fenced as fenced:
    say("fenced")
log.close()
with dlog.open_reader("log", url=URL) as reader:
    say(*[m.value.decode() for m in reader])
""",
        "-Wignore::DeprecationWarning",
    )
    assert lines == ["parent child", "4", "fenced", "parent child"], errors
    assert (code, errors) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="forking with threads is not safe elsewhere")
def test_a_child_that_drops_everything_is_silent(file_url: str) -> None:
    code, lines, errors = run(
        file_url,
        CHILD
        + """
import gc
log = dlog.open_writer("log", url=URL)
reader = dlog.open_reader("log", url=URL, follow=True) if log.append(b"x") else None
pid = os.fork()
if pid == 0:
    del log, reader
    gc.collect()
    sys.exit(0)
say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
log.append(b"y")
say(*[next(iter(reader)).value.decode() for _ in range(2)])
log.close()
reader.close()
""",
        "-Wdefault",
        "-Wignore::DeprecationWarning",
    )
    assert lines == ["0", "x y"], errors
    assert (code, errors) == (0, "")
