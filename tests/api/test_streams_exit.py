"""Streams in the child of a fork, and at the end of a program that closed nothing."""

from __future__ import annotations

from tests.api.programs import run
from tests.api.test_fork import CHILD

CALLS = [
    "writer.append(b'c', key=b'k')",
    "writer.submit(b'c')",
    "writer.submit(b'c', key=b'k', producer=(7, 1))",
    "writer.append_many([b'c'] * 3)",
    "writer.flush()",
    "reader.read()",
    "next(iter(reader))",
    "next(reader.batches())",
    "next(half_way)",
    "stream.split(0)",
    "stream.describe()",
    "client.streams()",
    "client.create_stream('other')",
]


def test_every_call_is_refused_in_the_child(url: str) -> None:
    calls = "\n            ".join(f'refused("{call}", lambda: {call})' for call in CALLS)
    code, lines, errors = run(
        url,
        CHILD
        + f"""
with dlog.connect(URL) as client:
    stream = client.create_stream("orders", shards=2)
    writer = stream.open_writer()
    writer.append_many([b"p"] * 5, keys=[b"k"] * 5)
    reader = stream.open_reader()
    half_way = iter(stream.open_reader())
    next(half_way)

    def child():
        for _ in range(1):
            {calls}
        writer.close()
        reader.close()
        for handle in (writer, reader, stream):
            repr(handle)

    in_child(child)
    writer.append(b"parent", key=b"k")
    stream.split(0)
    writer.append(b"parent", key=b"k")
    say(len(list(half_way)))
    say(len(list(reader)))
    reader.close()
    with stream.open_reader() as again:
        say(len(list(again)))
    writer.close()
""",
    )
    assert lines == [*(f"{call} refused" for call in CALLS), "child 0", "4", "5", "7"], errors
    assert code == 0


def test_a_program_that_closes_nothing_ends_and_says_so(url: str) -> None:
    code, lines, errors = run(
        url,
        """
client = dlog.connect(URL)
stream = client.create_stream("orders", shards=2)
writer = stream.open_writer()
writer.append(b"kept", key=b"k")
reader = stream.open_reader(follow=True)
reader.read()
say("end")
""",
        "-Wdefault",
    )
    assert lines == ["end"]
    assert code == 0
    assert errors.count("a writer of stream 'orders' was dropped without close()") == 1
    assert "a writer of log" not in errors
