"""The log meta: one node per log, the unit of compare-and-set, as a value with its lawful changes.

`LogMeta` is frozen. Each change a protocol may make is a method that returns the next value and
checks what must hold (numbers never repeat, listed ledger ids only grow, at most two segments are
unsealed). Who may make which change, and when, is decided in `writer` and `admin`; how it is stored
is JSON, readable in any shell. Fields that this version does not know survive a read-modify-write;
a name in `needs` that it does not know refuses the whole node.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from dlog import limits
from dlog.errors import ConfigError, FormatError, Moved, TooLarge, check
from dlog.ids import NO_LEDGER
from dlog.meta.json_fields import (
    dump,
    flat,
    load,
    optional_str,
    the_bool,
    the_dict,
    the_int,
    the_list,
    the_str,
    the_value,
)
from dlog.meta.listed import (
    CopyOf,
    Doomed,
    DoomedPage,
    End,
    MovedTo,
    PageRef,
    Point,
    Sealed,
    Segment,
    WriterMark,
    refs_from,
    segment_fields,
    segments_from,
)
from dlog.meta.pages import Cut, Held, next_cut
from dlog.meta.published import NOT_NEEDED, Published, PublishedBatch
from dlog.options import LogOptions

FORMAT = 1
# A log into which a job published: who does not know of its segments would miss what stands before
# them.
_JOBS = "jobs"
_KNOWN_NEEDS = frozenset({_JOBS})
UNSEALED_MAX = 2


class LogState(enum.Enum):
    OPEN = "open"
    TERMINATED = "terminated"  # no more appends, for good
    DELETING = "deleting"  # being removed: its ledgers go
    DELETED = "deleted"  # removed: only what must never go back is kept (epoch, numbers, floor)
    MOVED = "moved"  # kept in another metadata store from now on: nothing here counts any more


@dataclass(frozen=True, slots=True)
class LogMeta:
    uid: str
    options: LogOptions
    state: LogState = LogState.OPEN
    epoch: int = 0
    writer: WriterMark | None = None
    left_by: WriterMark | None = None  # who held the log last and left it, while nobody holds it
    end: End = field(default_factory=End)
    next_number: int = 1
    ledger_floor: int = NO_LEDGER
    segments: tuple[Segment, ...] = ()
    pages: tuple[PageRef, ...] = ()
    deleting: tuple[Doomed, ...] = ()
    deleting_pages: tuple[DoomedPage, ...] = ()
    hand_over: str | None = None  # the opener a planned hand-over expects
    truncate_before: Point = field(default_factory=Point)
    holds: int = 0  # grows when a hold is made: a truncation that did not see it is refused
    producers: bool = False  # some messages carry the number of their producer
    copy_of: CopyOf | None = None
    moved_to: MovedTo | None = None  # exactly when the state is MOVED
    published: Published = field(default_factory=Published)
    stream: str | None = None  # uid of the stream that this log is a shard of
    born_epoch: int = 0  # the epoch at which this log began, if a removed log had the name before
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return self.options.digest

    @property
    def unsealed(self) -> tuple[Segment, ...]:
        return tuple(segment for segment in self.segments if segment.sealed is None)

    @property
    def is_removed(self) -> bool:
        return self.state in (LogState.DELETED, LogState.DELETING)

    def segment(self, number: int) -> Segment | None:
        return next((s for s in self.segments if s.number == number), None)

    def owned_by(self, token: str) -> bool:
        writer = self.writer
        return self.state is LogState.OPEN and writer is not None and writer.token == token

    @property
    def is_blank(self) -> bool:
        """Open, and it never listed a segment: no message was ever written."""
        listed = self.segments or self.pages or self.end.ledger_id != NO_LEDGER
        return self.state is LogState.OPEN and self.writer is None and not listed

    @property
    def copies(self) -> str | None:
        """The uid of the log that this one may still be gone on with as a copy of. Whoever takes it
        over without messages of their own says so, and leaves it one."""
        copy_of = self.copy_of
        return copy_of.uid if copy_of is not None and copy_of.own_epoch < 0 else None

    def is_here(self, name: str | None = None) -> LogMeta:
        """This very meta; `Moved` if the log is kept elsewhere by now."""
        if self.moved_to is not None:
            moved = self.moved_to
            raise Moved(
                f"the log {name or self.uid!r} was moved to {moved.place} by {moved.name}: open it "
                "there",
                log=name,
                place=moved.place,
            )
        return self

    # --- changes

    def claimed(self, writer: WriterMark, *, copies: str | None = None) -> LogMeta:
        """The next epoch is `writer`'s. From here the list is frozen for everybody else. A copy of
        the log `copies` stays one, if that is what it is claimed for."""
        check(self.state is LogState.OPEN, "only an open log is claimed", self.state)
        copy_of, epoch = self.copy_of, self.epoch + 1
        if copy_of is not None and copies is None and copy_of.own_epoch < 0:
            copy_of = dataclasses.replace(copy_of, own_epoch=epoch)
        mark = writer.claiming(self)
        return dataclasses.replace(
            self, epoch=epoch, writer=mark, left_by=None, hand_over=None, copy_of=copy_of
        )

    def listed(self, ledger_id: int) -> LogMeta:
        """The next segment is `ledger_id`, of the current epoch."""
        check(
            ledger_id > self.ledger_floor,
            "listed ledger ids only grow",
            ledger_id,
            self.ledger_floor,
        )
        check(len(self.unsealed) < UNSEALED_MAX, "at most two segments are unsealed", self.unsealed)
        segment = Segment(self.next_number, ledger_id, self.epoch)
        return dataclasses.replace(
            self,
            segments=(*self.segments, segment),
            next_number=self.next_number + 1,
            ledger_floor=ledger_id,
        )

    def sealed(self, number: int, sealed: Sealed) -> LogMeta:
        """Segment `number`, the oldest unsealed one, ends as `sealed` says."""
        unsealed = self.unsealed
        check(
            bool(unsealed) and unsealed[0].number == number, "segments are sealed in order", number
        )
        check(
            sealed.base_seq == self.end.next_seq, "no seq is lost or given twice", sealed, self.end
        )
        done = dataclasses.replace(unsealed[0], sealed=sealed)
        published = self.published
        if sealed.next_seq > sealed.base_seq:  # the numbers of producers stand there by now
            published = dataclasses.replace(published, producers_at=NOT_NEEDED)
        return dataclasses.replace(
            self,
            published=published,
            segments=tuple(done if s.number == number else s for s in self.segments),
            end=End(
                number, done.ledger_id, sealed.last_entry, sealed.next_seq, sealed.last_time_us
            ),
        )

    def dropped(self, number: int, now_us: int) -> LogMeta:
        """Segment `number` held nothing acknowledged: it leaves the list, its number burnt, its
        ledger doomed."""
        gone = self.segment(number)
        check(
            gone is not None and gone.sealed is None, "only an unsealed segment is dropped", number
        )
        assert gone is not None
        return dataclasses.replace(
            self,
            segments=tuple(s for s in self.segments if s.number != number),
            deleting=(*self.deleting, Doomed(gone.ledger_id, now_us)),
        )

    def filled(self, ledger_id: int, sealed: Sealed) -> LogMeta:
        """The next segment is `ledger_id`, which a job filled and closed."""
        check(
            ledger_id > self.ledger_floor,
            "listed ledger ids only grow",
            ledger_id,
            self.ledger_floor,
        )
        check(not self.unsealed, "what a job filled stands behind what is sealed", self.unsealed)
        follows = sealed.base_seq == self.end.next_seq < sealed.next_seq
        check(follows, "no seq is lost or given twice", sealed, self.end)
        risen = self.end.last_time_us <= sealed.first_time_us <= sealed.last_time_us
        check(risen, "the clock of a log never goes back", sealed, self.end)
        number = self.next_number
        segment = Segment(number, ledger_id, self.epoch, sealed, is_job=True)
        return dataclasses.replace(
            self,
            segments=(*self.segments, segment),
            next_number=number + 1,
            ledger_floor=ledger_id,
            end=End(number, ledger_id, sealed.last_entry, sealed.next_seq, sealed.last_time_us),
        )

    def noted(self, batch: PublishedBatch) -> LogMeta:
        """This batch is there."""
        check(self.state is LogState.OPEN, "only into an open log is published", self.state)
        at = self._last_with_messages()
        if at is None and self.published.producers_at == NOT_NEEDED and self.pages:
            at = self.pages[-1].number  # it stands in the last page, as far as anybody knows
        published = self.published.noted(batch)
        if self.producers and at is not None:
            published = dataclasses.replace(published, producers_at=at)
        return dataclasses.replace(self, published=published)

    def discarded(self, ledgers: tuple[int, ...], now_us: int) -> LogMeta:
        """These ledgers, which a job filled and nobody ever listed, wait for their deletion: from
        now on nobody may."""
        check(all(each > self.ledger_floor for each in ledgers), "never listed", ledgers)
        doomed = tuple(Doomed(ledger_id, now_us) for ledger_id in ledgers)
        return dataclasses.replace(self, deleting=self.deleting + doomed)

    def next_cut(self) -> Cut | None:
        """The page that is due, when the inline list or that of pages grew long."""
        return next_cut(self.segments, self.pages)

    def paged(self, written: Mapping[tuple[int, int], Held]) -> LogMeta:
        """History that moved to pages, as far as they are `written`: by level and number, what they
        hold. One that holds something else than the list by now is not named."""
        meta = self
        while (cut := meta.next_cut()) is not None:
            if written.get((cut.ref.level, cut.ref.number)) != cut.held:
                break
            meta = meta.without(cut)
        return meta

    def without(self, cut: Cut) -> LogMeta:
        """With a page in the place of what it holds."""
        end = cut.first + len(cut.held)
        if cut.ref.level == 0:
            return dataclasses.replace(
                self, segments=self.segments[end:], pages=(*self.pages, cut.ref)
            )
        pages = (*self.pages[: cut.first], cut.ref, *self.pages[end:])
        return dataclasses.replace(self, pages=pages)

    # --- the other end

    def truncated(self, point: Point) -> LogMeta:
        """What is before `point` is gone, whatever of it still stands in the list."""
        self.is_here()
        return dataclasses.replace(self, truncate_before=self.truncate_before.joined(point))

    def swept(self, now_us: int) -> LogMeta:
        """Sealed history that is wholly before the truncation point leaves the list, oldest first,
        as far as there is room where it waits for its deletion. A page that is covered in part
        stays, and everything behind it. Of a log with producers, so does the newest sealed segment
        that holds messages: the table of their numbers stands there."""
        point = self.is_here().truncate_before
        pages, doomed_pages = self.pages, self.deleting_pages
        numbered = self._needs_numbers
        last = self._last_with_messages() if numbered else None
        kept_from = self.kept_from
        while pages and point.covers_page(pages[0]):
            is_needed = numbered and last is None and len(pages) == 1
            is_needed |= kept_from is not None and pages[0].last_number >= kept_from
            if len(doomed_pages) >= limits.META_DELETING_PAGES_MAX or is_needed:
                break
            doomed_pages += (DoomedPage(pages[0].number, pages[0].level, now_us),)
            pages = pages[1:]
        segments, doomed = self.segments, self.deleting
        while not pages and segments and point.covers(segments[0]):
            if len(doomed) >= limits.META_DELETING_MAX or segments[0].number == last:
                break
            if kept_from is not None and segments[0].number >= kept_from:
                break
            doomed += (Doomed(segments[0].ledger_id, now_us),)
            segments = segments[1:]
        return dataclasses.replace(
            self, pages=pages, deleting_pages=doomed_pages, segments=segments, deleting=doomed
        )

    @property
    def _needs_numbers(self) -> bool:
        """The table of producers is needed by the log's next writer; in a shard that ended, by the
        shards that follow it."""
        is_followed = self.state is LogState.TERMINATED and self.stream is not None
        return self.producers and (self.state is LogState.OPEN or is_followed)

    def _last_with_messages(self) -> int | None:
        """Of the inline segments that are sealed and hold messages, the newest one's number. In
        those of jobs the numbers of producers do not stand."""
        ends = ((s.number, s.sealed) for s in reversed(self.segments) if not s.is_job)
        holding = (n for n, end in ends if end is not None and end.next_seq > end.base_seq)
        return next(holding, None)

    @property
    def kept_from(self) -> int | None:
        """The segment with this number, and what is behind it, stays in the list, truncated or not:
        the numbers of producers stand there, and behind it are only segments of jobs."""
        numbered = self._needs_numbers
        at = self.published.producers_at
        return at if numbered and at != NOT_NEEDED else None

    def trimmed(
        self,
        first: PageRef,
        by: tuple[PageRef, ...],
        gone: tuple[int, ...],
        gone_pages: tuple[PageRef, ...],
        now_us: int,
    ) -> LogMeta:
        """The first page, which the truncation point reaches into, replaced `by` pages of what
        stays of it; the ledgers `gone` and those of `gone_pages` wait for their deletion."""
        check(self.is_here().pages[:1] == (first,), "only the first page is trimmed", first)
        return dataclasses.replace(
            self,
            pages=(*by, *self.pages[1:]),
            deleting=self.deleting + tuple(Doomed(ledger_id, now_us) for ledger_id in gone),
            deleting_pages=self.deleting_pages
            + tuple(DoomedPage(ref.number, ref.level, now_us) for ref in gone_pages),
        )

    def forgotten(self, ledgers: Container[int], pages: Container[tuple[int, int]]) -> LogMeta:
        """These ledgers, and the ledgers of these pages (level, number), are deleted."""
        self.is_here()
        return dataclasses.replace(
            self,
            deleting=tuple(d for d in self.deleting if d.ledger_id not in ledgers),
            deleting_pages=tuple(
                d for d in self.deleting_pages if (d.level, d.number) not in pages
            ),
        )

    def numbered(self) -> LogMeta:
        """From now on messages may carry the number of their producer, and every segment a table of
        the last ones."""
        return dataclasses.replace(self, producers=True)

    def with_options(self, options: LogOptions) -> LogMeta:
        """Other limits from now on. What ledgers are made with is for the life of the log."""
        ours = self.options
        fixed = ("ensemble", "write_quorum", "ack_quorum", "digest", "unsafe_single_copy")
        for name in fixed:
            same = getattr(ours, name) == getattr(options, name)
            check(same, "what ledgers are made with stays", name, ours, options)
        return dataclasses.replace(self.is_here(), options=options)

    def held(self) -> LogMeta:
        """A hold was made: whoever decided on a truncation without it has to look again."""
        return dataclasses.replace(self.is_here(), holds=self.holds + 1)

    def terminated(self) -> LogMeta:
        """The end, for good. Of a log whose segments are all sealed."""
        self.is_here()
        check(self.state is LogState.OPEN and not self.unsealed, "an end is sealed", self.state)
        left_by = self.writer or self.left_by
        return dataclasses.replace(
            self, state=LogState.TERMINATED, writer=None, left_by=left_by, hand_over=None
        )

    def handed_over(self, to: str | None) -> LogMeta:
        return dataclasses.replace(self, writer=None, left_by=self.writer, hand_over=to)

    def doomed(self, now_us: int, remover: WriterMark) -> LogMeta:
        """Removal began: writers are fenced by the epoch, every ledger waits for deletion."""
        self.is_here()
        ledgers = tuple(Doomed(segment.ledger_id, now_us) for segment in self.segments)
        pages = tuple(DoomedPage(page.number, page.level, now_us) for page in self.pages)
        return dataclasses.replace(
            self,
            state=LogState.DELETING,
            epoch=self.epoch + 1,
            writer=remover,
            left_by=None,
            segments=(),
            pages=(),
            deleting=self.deleting + ledgers,
            deleting_pages=self.deleting_pages + pages,
        )

    def tombstone(self) -> LogMeta:
        """What stays of a removed log: all that must never go back."""
        left = self.deleting or self.deleting_pages or self.pages or self.segments
        check(not left, "a tombstone holds no ledger", self.uid)
        return dataclasses.replace(
            self,
            state=LogState.DELETED,
            hand_over=None,
            truncate_before=Point(),
            producers=False,
            published=Published(),
        )

    def reborn(self, uid: str, options: LogOptions, *, stream: str | None = None) -> LogMeta:
        """A new log under the name of a removed one: epoch, numbers and ledger ids go on rising."""
        check(self.state is LogState.DELETED, "only a removed log is made anew", self.state)
        return LogMeta(
            uid=uid,
            options=options,
            epoch=self.epoch,
            stream=stream,
            born_epoch=self.epoch,
            next_number=self.next_number,
            ledger_floor=self.ledger_floor,
            end=End(number=self.next_number - 1, last_time_us=self.end.last_time_us),
        )

    def as_copy(self, of: CopyOf, last_time_us: int, *, producers: bool = False) -> LogMeta:
        """A log without messages whose first one will have the seq and the time that it has in
        another log. `producers`: that one has some, of whom what is copied may not tell."""
        check(self.is_blank, "only a log without messages becomes a copy", self.uid)
        return dataclasses.replace(
            self,
            copy_of=of,
            end=dataclasses.replace(self.end, next_seq=of.first_seq, last_time_us=last_time_us),
            truncate_before=Point(of.first_seq),
            producers=producers,
        )

    # --- moving between metadata stores

    def left_for(self, place: str, name: str, now_us: int) -> LogMeta:
        """From now on the log is kept elsewhere. Of a log whose segments are all sealed, and that
        nobody holds: whoever held it is fenced, and finds the state changed. Whatever number it had
        there before, its epoch is higher now."""
        free = self.writer is None and not self.unsealed
        check(self.state in _MOVABLE and free, "what moves is sealed", self.state)
        return dataclasses.replace(
            self,
            state=LogState.MOVED,
            epoch=self.epoch + 1,
            moved_to=MovedTo(place, self.state.value, name, now_us),
            hand_over=None,
        )

    def sent_elsewhere(self, place: str, name: str, now_us: int) -> LogMeta:
        """To another place than it was meant for."""
        check(self.moved_to is not None, "only a log that left is sent elsewhere", self.state)
        assert self.moved_to is not None
        moved_to = MovedTo(place, self.moved_to.was, name, now_us)
        return dataclasses.replace(self, epoch=self.epoch + 1, moved_to=moved_to)

    def arrived(self) -> LogMeta:
        """All of it is here: it is again what it was."""
        check(self.moved_to is not None, "only a log that left arrives", self.state)
        assert self.moved_to is not None
        return dataclasses.replace(self, state=LogState(self.moved_to.was), moved_to=None)

    def succeeds(self, left: LogMeta) -> bool:
        """May this one, which moves, come to where `left` is what stayed of a log that was removed,
        or that moved away? Only if no number goes back."""
        stayed = left.state in (LogState.DELETED, LogState.MOVED)
        return (
            stayed
            and self.epoch > left.epoch
            and self.next_number >= left.next_number
            and self.ledger_floor >= left.ledger_floor
        )

    # --- bytes

    def to_bytes(self) -> bytes:
        extra = dict(self.extra)
        options = {**extra.pop("options", {}), **flat(self.options)}
        del options["unsafe_single_copy"]  # said by the quorum itself
        del options["digest"]  # has a place of its own
        fields: dict[str, Any] = {
            **extra,
            "format": FORMAT,
            "needs": [_JOBS] if self.published != Published() else [],
            "uid": self.uid,
            "state": self.state.value,
            "epoch": self.epoch,
            "writer": None if self.writer is None else flat(self.writer),
            "left_by": None if self.left_by is None else flat(self.left_by),
            "options": options,
            "digest": self.digest,
            "end": flat(self.end),
            "next_number": self.next_number,
            "ledger_floor": self.ledger_floor,
            "segments": [segment_fields(s) for s in self.segments],
            "pages": [flat(p) for p in self.pages],
            "deleting": [flat(d) for d in self.deleting],
            "deleting_pages": [flat(d) for d in self.deleting_pages],
            "hand_over": self.hand_over,
            "truncate_before": flat(self.truncate_before),
            "holds": self.holds,
            "producers": self.producers,
        }
        if self.copy_of is not None:
            fields["copy_of"] = self.copy_of.fields()
        if self.moved_to is not None:
            fields["moved_to"] = flat(self.moved_to)
        if self.published != Published():
            fields["published"] = self.published.fields()
        if self.stream is not None:
            fields["stream"] = self.stream
        if self.born_epoch:
            fields["born_epoch"] = self.born_epoch
        raw = dump(fields)
        if len(raw) > limits.META_NODE_BYTES_MAX:
            raise TooLarge(
                f"the meta of log {self.uid} would take {len(raw)} bytes in its node, more than "
                f"{limits.META_NODE_BYTES_MAX}"
            )
        return raw

    @classmethod
    def from_bytes(cls, raw: bytes, *, where: str) -> LogMeta:
        fields = load(raw, where)
        if the_int(fields, "format", where) != FORMAT:
            raise FormatError(f"{where} has format {fields['format']}; this version knows {FORMAT}")
        strange = {str(name) for name in the_list(fields, "needs", where)} - _KNOWN_NEEDS
        if strange:
            names = ", ".join(sorted(strange))
            raise FormatError(f"{where} needs {names}, which this version lacks")
        writer, left_by = fields.get("writer"), fields.get("left_by")
        copy_of, moved_to = fields.get("copy_of"), fields.get("moved_to")
        options = the_dict(fields, "options", where)
        if options.get("ack_quorum") == 1:  # it was asked for by name when the log was made
            options = {**options, "unsafe_single_copy": True}
        options = {**options, "digest": the_str(fields, "digest", where)}
        newer_options = {k: v for k, v in options.items() if k not in _OPTION_FIELDS}
        extra = {k: v for k, v in fields.items() if k not in _META_FIELDS}
        try:
            known_options = LogOptions(**{k: options[k] for k in _OPTION_FIELDS & options.keys()})
            state = LogState(fields.get("state"))
        except (ConfigError, ValueError) as error:
            raise FormatError(f"{where}: {error}") from None
        published = fields.get("published")
        moved = None if moved_to is None else the_value(MovedTo, moved_to, where)
        if (state is LogState.MOVED) != (moved is not None):
            raise FormatError(f"{where}: a log that moved says where to, and no other log does")
        if moved is not None and moved.was not in {each.value for each in _MOVABLE}:
            raise FormatError(f"{where}: a log that was {moved.was!r} does not move")
        return cls(
            uid=the_str(fields, "uid", where),
            options=known_options,
            state=state,
            epoch=the_int(fields, "epoch", where),
            writer=None if writer is None else the_value(WriterMark, writer, where),
            left_by=None if left_by is None else the_value(WriterMark, left_by, where),
            end=the_value(End, fields.get("end"), where),
            next_number=the_int(fields, "next_number", where),
            ledger_floor=the_int(fields, "ledger_floor", where),
            segments=segments_from(the_list(fields, "segments", where), where),
            pages=refs_from(the_list(fields, "pages", where), where),
            deleting=tuple(
                the_value(Doomed, d, where) for d in the_list(fields, "deleting", where)
            ),
            deleting_pages=tuple(
                the_value(DoomedPage, d, where) for d in the_list(fields, "deleting_pages", where)
            ),
            hand_over=optional_str(fields, "hand_over", where),
            truncate_before=the_value(Point, fields.get("truncate_before"), where),
            holds=the_int(fields, "holds", where),
            producers=the_bool(fields, "producers", where),
            copy_of=None if copy_of is None else CopyOf.from_fields(copy_of, where),
            moved_to=moved,
            published=(
                Published() if published is None else Published.from_fields(published, where)
            ),
            stream=optional_str(fields, "stream", where),
            born_epoch=the_int(fields, "born_epoch", where) if "born_epoch" in fields else 0,
            extra={**extra, "options": newer_options} if newer_options else extra,
        )


_MOVABLE = (LogState.OPEN, LogState.TERMINATED)
_OPTION_FIELDS = frozenset(f.name for f in dataclasses.fields(LogOptions))
_META_FIELDS = frozenset(f.name for f in dataclasses.fields(LogMeta)) | {
    "digest",
    "format",
    "needs",
}
