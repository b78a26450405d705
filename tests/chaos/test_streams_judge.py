"""The judge of runs with streams notices what it is there for: each case takes a history in which
all is well and plants one wrong thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.streams.journal import Line, Name, key_of, packed
from tests.chaos.streams.judge import Final, Judge, Story
from tests.chaos.streams.scene import GROUP

UID = "u"
# Of one producer: two shards, the second one follows the first.
N = 60
FIRST: list[Name] = [(1, number) for number in range(N)]
SECOND: list[Name] = [(1, number) for number in range(N, 2 * N)]
SAME_KEY = [n for n in range(2 * N) if key_of((1, n)) == key_of((1, 0))]


class History:
    def __init__(self) -> None:
        self.t = 0
        self.lines: list[Line] = []
        self.note("sent", p=1, to=2 * N)
        self.note("ack", p=1, n=[[0, 2 * N - 1]])
        self.note("reading", jumps=False)
        self.did(0, 1, 0, FIRST[:5])
        self.kept(0, 1, 3)
        self.did(0, 2, 3, FIRST[3:])
        self.did(1, 1, 0, SECOND)
        self.read(0, 0, FIRST)
        self.read(1, 0, SECOND)
        self.final = Final(UID, [], {0: 0, 1: 0})
        for shard, names in enumerate((FIRST, SECOND)):
            self.final.messages += [(shard, seq, UID, n) for seq, n in enumerate(names)]

    def note(self, op: str, **fields: Any) -> Line:
        self.t += 1
        line = {"t": self.t, "op": op, "role": "one", "launch": 1, "uid": UID, **fields}
        self.lines.append(line)
        return line

    def did(self, shard: int, token: int, first: int, names: list[Name], **more: Any) -> None:
        told = {"uids": [UID], "group": GROUP, "role": f"worker{token}", **more}
        self.note("did", shard=shard, token=token, first=first, m=packed(names), **told)

    def kept(self, shard: int, token: int, upto: int) -> None:
        self.note("kept", group=GROUP, shard=shard, token=token, upto=upto, uids=[UID])

    def read(
        self, shard: int, first: int, names: list[Name], uids: tuple[str, ...] = (UID,)
    ) -> None:
        run = {"shard": shard, "first": first, "m": packed(names), "uids": list(uids)}
        self.note("read", runs=[run], pos="")

    def judge(self) -> list[str]:
        story = Story()
        story.take(self.lines)
        return Judge(story, self.final).judge()


def lose(history: History) -> None:
    history.note("ack", p=1, n=[[2 * N, 2 * N]])
    history.note("sent", p=1, to=2 * N + 1)


def lose_from_the_stream(history: History) -> None:
    del history.final.messages[4]


def double(history: History) -> None:
    history.final.messages.append((1, N, UID, (1, 4)))


def double_for_a_worker(history: History) -> None:
    history.did(1, 1, N, [(1, 4)])


def invent(history: History) -> None:
    history.final.messages.append((1, N, UID, (1, 777)))


def replace(history: History) -> None:
    history.read(1, N, [(1, 4)])


def reorder(history: History) -> None:
    history.final.messages.reverse()


def mix(history: History) -> None:
    history.final.messages.append((1, N, "other", (1, 4)))


def mix_for_the_follower(history: History) -> None:
    history.read(1, N, [(1, 4)], "other")


def skip(history: History) -> None:
    history.did(1, 3, N + 2, [(1, 777)])


def give_again_what_was_kept(history: History) -> None:
    history.did(0, 3, 2, FIRST[2:3])


def share_a_token(history: History) -> None:
    history.did(0, 2, 3, FIRST[3:4], role="another")


def follow_again(history: History) -> None:
    history.read(1, 5, SECOND[5:6])


def follow_with_a_gap(history: History) -> None:
    lines = [line for line in history.lines if line["op"] != "read"]
    history.lines = lines
    history.read(0, 0, FIRST[:3])
    history.read(0, 5, FIRST[5:])
    history.read(1, 0, SECOND)


def follow_no_further(history: History) -> None:
    del history.lines[-1]


def truncated_silently(history: History) -> None:
    """It is not in the stream any more, and the follower was never told."""
    history.note("truncating", shard=1)
    history.final.heads[1] = N
    del history.lines[-2]  # of the follower
    history.final.messages = history.final.messages[:N]


@pytest.mark.parametrize(
    ("plant", "word"),
    [
        (lose, "neither in the stream nor processed"),
        (lose_from_the_stream, "not in the stream any more"),
        (double, "is twice"),
        (double_for_a_worker, "is twice"),
        (invent, "never sent"),
        (replace, "is twice"),
        (reorder, "out of order"),
        (mix, "other incarnations"),
        (mix_for_the_follower, "was given messages of"),
        (skip, f"goes on at {N + 2} behind {N}"),
        (give_again_what_was_kept, "although 3 was kept"),
        (share_a_token, "is that of"),
        (follow_again, "again from 5"),
        (follow_with_a_gap, "skips 3…5"),
        (follow_no_further, "never got what is in the stream"),
        (truncated_silently, "missed messages, and nothing was told"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_it_notices(plant: Callable[[History], None], word: str) -> None:
    history = History()
    plant(history)
    found = history.judge()
    assert any(word in each for each in found), found


def test_nothing_is_wrong_where_all_is_well() -> None:
    assert len(SAME_KEY) > 1, "or there is no order to keep"
    assert History().judge() == []


def test_what_was_truncated_behind_the_group_is_not_lost() -> None:
    history = History()
    history.final.heads = {1: 4}
    history.final.messages = history.final.messages[N + 4 :]
    assert history.judge() == []
