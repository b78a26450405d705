"""What may not be, by the histories of everybody and by what is in the stream at the end.

Messages are judged by incarnation of the stream (`uid`): that of the end is known whole, those that
were removed by what was seen of them.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.chaos.streams.journal import Line, Name, key_of, unpacked, unranged
from tests.chaos.streams.scene import GROUP, JOB

SHOWN_MAX = 5
ALL_DONE = "all shards are done"


@dataclass
class Final:
    """The stream when everybody had stopped."""

    uid: str
    messages: list[tuple[int, int, str, Name]]  # shard, seq, the uid in its value, its name
    heads: dict[int, int | None]  # of the shards that are listed

    def is_gone(self, shard: int, seq: int) -> bool:
        """Truncated or trimmed."""
        if shard not in self.heads:
            return True
        head = self.heads[shard]
        return head is not None and seq < head


@dataclass
class Delivery:
    """Messages that one consumer was given together, of one shard."""

    t: int
    by: str
    token: int
    shard: int
    first: int
    names: list[Name]

    @property
    def end(self) -> int:
        return self.first + len(self.names)


@dataclass
class Story:
    """The lines of all journals, sorted out. Lines are taken as they come: `take` may be called
    again with those that came since."""

    acked: dict[str, dict[Name, int]] = field(default_factory=lambda: defaultdict(dict))
    sent: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    # By group and uid.
    done: dict[tuple[str, str], list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    done_names: dict[tuple[str, str], set[Name]] = field(default_factory=lambda: defaultdict(set))
    kept: list[tuple[str, str, Line]] = field(default_factory=list)  # group, uid, line
    read: dict[str, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    read_names: dict[str, set[Name]] = field(default_factory=lambda: defaultdict(set))
    readings: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # begun at
    missed: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    truncating: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    jobs: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    lines: list[Line] = field(default_factory=list)  # all others
    wrong: list[str] = field(default_factory=list)

    def take(self, lines: Iterable[Line]) -> None:
        for line in lines:
            handle = getattr(self, f"_{line['op']}", None)
            if handle is None:
                self.lines.append(line)
            else:
                handle(line)

    def _ack(self, line: Line) -> None:
        acked = self.acked[line["uid"]]
        for number in unranged(line["n"]):
            acked.setdefault((line["p"], number), line["t"])

    def _sent(self, line: Line) -> None:
        of = line["uid"], line["p"]
        self.sent[of] = max(self.sent[of], line["to"])

    def _one_uid(self, line: Line, uids: list[str], who: str) -> str:
        if len(uids) != 1:
            self.wrong.append(f"{who} was given messages of {uids} together: {line}")
        return uids[0]

    def _did(self, line: Line) -> None:
        uid = self._one_uid(line, line["uids"], line["role"])
        names = unpacked(line["m"])
        by = f"{line['role']}.{line['launch']}"
        of = line["group"], uid
        self.done[of].append(
            Delivery(line["t"], by, line["token"], line["shard"], line["first"], names)
        )
        self.done_names[of].update(names)

    def _kept(self, line: Line) -> None:
        self.kept.append((line["group"], self._one_uid(line, line["uids"], "kept"), line))

    def _read(self, line: Line) -> None:
        uid = line["uid"]
        for run in line["runs"]:
            found = self._one_uid(line, run["uids"], "the follower")
            if found != uid:
                self.wrong.append(f"a reader of {uid} was given messages of {found}: {line['t']}")
            names = unpacked(run["m"])
            by = f"{line['role']}.{line['launch']}"
            self.read[uid].append(Delivery(line["t"], by, 0, run["shard"], run["first"], names))
            self.read_names[uid].update(names)

    def _reading(self, line: Line) -> None:
        self.readings[line["uid"]].append(line["t"])

    def _missed(self, line: Line) -> None:
        self.missed[line["uid"] or "none"].append(line)

    def _truncating(self, line: Line) -> None:
        self.truncating[line["uid"]].append((line["t"], line["shard"]))

    def _job(self, line: Line) -> None:
        self.jobs[line["group"]].append(line)

    _job_open = _job_over = _job_stuck = _job


class Kept:
    """Checkpoints of one shard that were kept for certain."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[list[int], list[int]]] = {}  # by token: times, and how far

    def add(self, token: int, t: int, upto: int) -> None:
        """In the order of time."""
        times, ends = self._of.setdefault(token, ([], []))
        times.append(t)
        ends.append(max(upto, ends[-1] if ends else 0))

    def before(self, token: int, t: int) -> int:
        """By smaller tokens at any time, and by this one until then."""
        upto = max((ends[-1] for other, (_, ends) in self._of.items() if other < token), default=0)
        times, ends = self._of.get(token, ([], []))
        count = bisect.bisect_left(times, t)
        return max(upto, ends[count - 1]) if count else upto


@dataclass
class Judge:
    story: Story
    final: Final
    has_retention: bool = False  # messages may be truncated at any time
    found: list[str] = field(default_factory=list)

    def judge(self) -> list[str]:
        self.found = list(self.story.wrong)
        self._strangers()
        self._places()
        self._lost()
        for (group, uid), told in self.story.done.items():
            self._order(f"group {group} of {uid}", firsts_of(told))
            self._seams(group, uid, told)
        for uid, read in self.story.read.items():
            self._follower(uid, read)
        in_stream = [name for _, _, _, name in self.final.messages]
        self._order("the stream", in_stream)
        self._checkpoints()
        self._jobs()
        return self.found

    def say(self, what: str, evidence: Iterable[object] = ()) -> None:
        shown = list(evidence)
        told = f": {len(shown)}, as {shown[:SHOWN_MAX]}" if shown else ""
        self.found.append(what + told)

    # --- each message once

    def _strangers(self) -> None:
        others = [each for each in self.final.messages if each[2] != self.final.uid]
        if others:
            self.say(f"messages of other incarnations in {self.final.uid}", others)

    def _seen(self) -> Iterator[tuple[str, str, Delivery]]:
        for (group, uid), told in self.story.done.items():
            yield from ((f"group {group}", uid, each) for each in told)
        for uid, read in self.story.read.items():
            yield from (("the follower", uid, each) for each in read)

    def _places(self) -> None:
        """A message has one place, and a place one message, for whoever looks."""
        places: dict[tuple[str, Name], tuple[int, int]] = {}
        names: dict[tuple[str, int, int], Name] = {}

        def note(uid: str, shard: int, seq: int, name: Name, by: str) -> None:
            if places.setdefault((uid, name), (shard, seq)) != (shard, seq):
                there = places[uid, name]
                self.say(f"{uid}: {name} is twice: at {there} and, by {by}, at {(shard, seq)}")
            if names.setdefault((uid, shard, seq), name) != name:
                other = names[uid, shard, seq]
                self.say(f"{uid}: at {(shard, seq)} is {other} and, by {by}, {name}")

        for by, uid, each in self._seen():
            for seq, name in enumerate(each.names, each.first):
                note(uid, each.shard, seq, name, by)
        for shard, seq, uid, name in self.final.messages:
            note(uid, shard, seq, name, "the last reader")
        for (uid, (producer, number)), place in places.items():
            if number >= self.story.sent[uid, producer]:
                self.say(f"{uid}: {(producer, number)} at {place} was never sent")
        self.places = places

    def _lost(self) -> None:
        uid = self.final.uid
        there = {name for _, _, _, name in self.final.messages}
        done = self.story.done_names[GROUP, uid]
        acked = self.story.acked[uid]
        lost = [name for name in acked if name not in there and name not in done]
        if lost:
            self.say(f"{uid}: acknowledged, and neither in the stream nor processed", lost)
        gone = []
        for name in acked:
            place = self.places.get((uid, name))
            if place and name not in there and not self.final.is_gone(*place):
                gone.append((name, place))
        if gone:
            self.say(f"{uid}: seen, not truncated, and not in the stream any more", gone)
        missing = [name for name in acked if name not in done]
        if missing:
            self.say(f"{uid}: acknowledged, and never processed by the group", missing)

    # --- order

    def _order(self, who: str, names: Iterable[Name]) -> None:
        last: dict[tuple[bytes, int], int] = {}
        wrong = []
        for producer, number in names:
            key = key_of((producer, number))
            if key is None:
                continue
            before = last.get((key, producer), -1)
            if number <= before:
                wrong.append((key, producer, before, number))
            last[key, producer] = max(number, before)
        if wrong:
            self.say(f"{who}: numbers of a key out of order", wrong)

    def _seams(self, group: str, uid: str, told: list[Delivery]) -> None:
        """Nothing is passed over in a shard: whoever was given a message knew of all before it,
        except where a job's shard was truncated before it began."""
        upto: dict[int, int] = {}
        for each in sorted(told, key=lambda each: each.t):
            before = upto.get(each.shard)
            if before is None and (group.startswith(JOB) or each.first == 0):
                before = each.first
            if before is None or each.first > before:
                self.say(
                    f"group {group} of {uid}: shard {each.shard} goes on at {each.first} behind "
                    f"{before}, by {each.by} with token {each.token}"
                )
            upto[each.shard] = max(before or 0, each.end)

    def _follower(self, uid: str, read: list[Delivery]) -> None:
        self._order(f"the follower of {uid}", [name for each in read for name in each.names])
        upto: dict[int, int] = {}
        told = bool(self.story.missed.get(uid) or self.story.missed.get("none"))
        for each in read:
            before = upto.get(each.shard, each.first)
            if each.first < before:
                self.say(f"the follower of {uid}: shard {each.shard} again from {each.first}")
            elif each.first > before and not told:
                self.say(f"the follower of {uid}: shard {each.shard} skips {before}…{each.first}")
            upto[each.shard] = each.end
        if uid == self.final.uid:
            self._followed_all(uid, read, told)

    def _followed_all(self, uid: str, read: list[Delivery], told: bool) -> None:
        seen = self.story.read_names[uid]
        unseen = [name for name in self.story.acked[uid] if name not in seen]
        kept = [n for n in unseen if (uid, n) in self.places and not self._is_gone(n)]
        if kept:
            self.say(f"the follower of {uid} never got what is in the stream", kept)
        began = max((t for t in self.story.readings[uid] if t <= read[0].t), default=0)
        first_cut = min((t for t, _ in self.story.truncating[uid]), default=None)
        began_before = not self.has_retention and (first_cut is None or began < first_cut)
        if unseen and not told and began_before:
            self.say(f"the follower of {uid} missed messages, and nothing was told", unseen)

    def _is_gone(self, name: Name) -> bool:
        return self.final.is_gone(*self.places[self.final.uid, name])

    # --- groups

    def _checkpoints(self) -> None:
        """What was kept is not given to anybody again. A worker that slept is none the wiser: its
        token is smaller."""
        kept: dict[tuple[str, str, int], Kept] = defaultdict(Kept)
        for group, uid, line in sorted(self.story.kept, key=lambda each: each[2]["t"]):
            kept[group, uid, line["shard"]].add(line["token"], line["t"], line["upto"])
        for (group, uid), told in self.story.done.items():
            owners: dict[tuple[int, int], str] = {}
            for each in told:
                owner = owners.setdefault((each.shard, each.token), each.by)
                if owner != each.by:
                    self.say(
                        f"group {group} of {uid}: token {each.token} of shard {each.shard} is "
                        f"that of {owner} and of {each.by}"
                    )
                upto = kept[group, uid, each.shard].before(each.token, each.t)
                if each.first < upto:
                    self.say(
                        f"group {group} of {uid}: shard {each.shard} from {each.first} again, "
                        f"by {each.by} with token {each.token}, although {upto} was kept"
                    )

    def _jobs(self) -> None:
        for group, lines in self.story.jobs.items():
            uids = {line.get("uid") for line in lines if line["op"] in ("job", "job_over")}
            over = [line for line in lines if line["op"] == "job_over"]
            if len(uids) != 1 or not over or any(line["after"] not in uids for line in over):
                continue  # the stream was removed under it, or it never ended
            (uid,) = uids
            why = over[-1]["why"]
            if why != ALL_DONE:
                if uid == self.final.uid:
                    self.say(f"job {group} of {uid} ended so: {why}; {lines}")
                continue
            self._job(group, uid, lines)

    def _job(self, group: str, uid: str, lines: list[Line]) -> None:
        began = lines[0]["t"]
        opened = max(line["t"] for line in lines if line["op"] == "job_open")
        cut = {shard for t, shard in self.story.truncating[uid] if t < opened}
        done = self.story.done_names[group, uid]
        missing = []
        for name, t in self.story.acked[uid].items():
            if t < began and name not in done and not self.has_retention:
                place = self.places.get((uid, name))
                if place is not None and place[0] not in cut:
                    missing.append((name, place))
        if missing:
            self.say(f"job {group} of {uid} did not get what was there before it", missing)


def firsts_of(told: list[Delivery]) -> Iterator[Name]:
    """In the order in which they were processed for the first time."""
    seen: set[Name] = set()
    for each in sorted(told, key=lambda each: each.t):
        for name in each.names:
            if name not in seen:
                seen.add(name)
                yield name


__all__ = ["Final", "Judge", "Story"]
