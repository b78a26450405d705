"""What a bookie's answer means, and what each of our calls does about it, as tables.

Both protocols have their own numbers for the same dozen answers; `Answer` is the one set of words
the rest of the program knows, and it adds what no bookie says: that it did not answer, or not with
what was stored. A number that is not in the table is a `FormatError`, never the nearest meaning.

The reactions are those of the stock client, except where it is too trusting or too hasty: an answer
with a broken digest covers nothing, and a bookie that is only busy is asked again before it is
replaced. Whoever reacts looks here and nowhere else, so that a test can walk through every pair.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from dlog.errors import Broken, FormatError


class Answer(enum.Enum):
    OK = "ok"
    NO_LEDGER = "no ledger"
    NO_ENTRY = "no entry"
    BAD_REQUEST = "bad request"
    IO_FAILED = "io failed"
    UNAUTHORIZED = "unauthorized"  # wrong key, not authenticated, or an add to a ledger in limbo
    BAD_VERSION = "bad version"
    FENCED = "fenced"
    READ_ONLY = "read only"
    BUSY = "busy"  # a queue or cache is full: adds before and after this one may have been taken
    LIMBO = "limbo"  # the bookie cannot tell whether it ever had data of this ledger
    # No bookie says these:
    DISCONNECTED = "disconnected"  # lost, or never connected, or nobody has this bookie id
    TIMED_OUT = "timed out"
    BAD_DIGEST = "bad digest"
    CLIENT_CLOSED = "client closed"
    ILLEGAL = "illegal"  # the call makes no sense in this state


class ReturnCode(enum.IntEnum):
    """Of the binary protocol (v2)."""

    EOK = 0
    ENOLEDGER = 1
    ENOENTRY = 2
    EBADREQ = 100
    EIO = 101
    EUA = 102
    EBADVERSION = 103
    EFENCED = 104
    EREADONLY = 105
    ETOOMANYREQUESTS = 106
    EUNKNOWNLEDGERSTATE = 107


class StatusCode(enum.IntEnum):
    """Of the protobuf protocol (v3)."""

    EOK = 0
    ENOLEDGER = 402
    ENOENTRY = 403
    EBADREQ = 404
    EIO = 501
    EUA = 502
    EBADVERSION = 503
    EFENCED = 504
    EREADONLY = 505
    ETOOMANYREQUESTS = 506
    EUNKNOWNLEDGERSTATE = 507


_MEANINGS: Final = {
    "EOK": Answer.OK,
    "ENOLEDGER": Answer.NO_LEDGER,
    "ENOENTRY": Answer.NO_ENTRY,
    "EBADREQ": Answer.BAD_REQUEST,
    "EIO": Answer.IO_FAILED,
    "EUA": Answer.UNAUTHORIZED,
    "EBADVERSION": Answer.BAD_VERSION,
    "EFENCED": Answer.FENCED,
    "EREADONLY": Answer.READ_ONLY,
    "ETOOMANYREQUESTS": Answer.BUSY,
    "EUNKNOWNLEDGERSTATE": Answer.LIMBO,
}
_OF_RETURN_CODE: Final = {int(code): _MEANINGS[code.name] for code in ReturnCode}
_OF_STATUS_CODE: Final = {int(code): _MEANINGS[code.name] for code in StatusCode}


def answer_of_return_code(number: int, where: str) -> Answer:
    answer = _OF_RETURN_CODE.get(number)
    if answer is None:
        raise FormatError(f"{where}: unknown return code {number}")
    return answer


def answer_of_status_code(number: int, where: str) -> Answer:
    answer = _OF_STATUS_CODE.get(number)
    if answer is None:
        raise FormatError(f"{where}: unknown status code {number}")
    return answer


# The codes of the stock client, for people who compare logs: on reads, on writes.
STOCK_CODES: Final[Mapping[Answer, tuple[int, int]]] = MappingProxyType(
    {
        Answer.OK: (0, 0),
        Answer.NO_LEDGER: (-7, -7),
        Answer.NO_ENTRY: (-13, -13),
        Answer.BAD_REQUEST: (-1, -12),
        Answer.IO_FAILED: (-1, -12),
        Answer.UNAUTHORIZED: (-102, -102),
        Answer.BAD_VERSION: (-16, -16),
        Answer.FENCED: (-101, -101),
        Answer.READ_ONLY: (-104, -104),
        Answer.BUSY: (-105, -105),
        Answer.LIMBO: (-108, -108),
        Answer.DISCONNECTED: (-8, -8),
        Answer.TIMED_OUT: (-23, -23),
        Answer.BAD_DIGEST: (-5, -5),
        Answer.CLIENT_CLOSED: (-19, -19),
        Answer.ILLEGAL: (-100, -100),
    }
)


class Call(enum.Enum):
    ADD = "add"  # recovery adds, too; a fatal answer ends that recovery
    READ = "read"
    FENCE = "fence"  # and every reading of the LAC that needs coverage
    RECOVERY_READ = "recovery read"


class Reaction(enum.Enum):
    """To one bookie's answer to one request."""

    TAKE = "take"  # count the ack; deliver the entry; write it back
    REPLACE_BOOKIE = "replace bookie"  # an ensemble change
    RESEND_LATER = "resend later"  # pause; replace a bookie that goes on refusing
    NEXT_REPLICA = "next replica"
    COUNT_MISSING = "count missing"  # it has none: ask the next, and count towards absence
    COVERED = "covered"  # it has answered for its part of the ensemble
    NOT_COVERED = "not covered"
    STOP = "stop"  # fatal for the whole operation, whatever other bookies say


_STOP, _NEXT, _REPLACE = Reaction.STOP, Reaction.NEXT_REPLICA, Reaction.REPLACE_BOOKIE
_COVERED, _OPEN, _MISSING = Reaction.COVERED, Reaction.NOT_COVERED, Reaction.COUNT_MISSING

_ORDER = (Call.ADD, Call.READ, Call.FENCE, Call.RECOVERY_READ)
_ROWS: dict[Answer, tuple[Reaction | None, Reaction, Reaction, Reaction]] = {
    Answer.OK: (Reaction.TAKE, Reaction.TAKE, _COVERED, Reaction.TAKE),
    # A bookie that has nothing says so in two ways, and a fence of an unknown ledger in either.
    Answer.NO_ENTRY: (_REPLACE, _NEXT, _COVERED, _MISSING),
    Answer.NO_LEDGER: (_REPLACE, _NEXT, _COVERED, _MISSING),
    Answer.FENCED: (_STOP, _NEXT, _OPEN, _NEXT),
    Answer.UNAUTHORIZED: (_STOP, _NEXT, _STOP, _NEXT),
    Answer.CLIENT_CLOSED: (_STOP, _STOP, _STOP, _STOP),
    Answer.ILLEGAL: (_STOP, _STOP, _STOP, _STOP),
    Answer.READ_ONLY: (_REPLACE, _NEXT, _OPEN, _NEXT),
    # An answer to an add carries no digest.
    Answer.BAD_DIGEST: (None, _NEXT, _OPEN, _NEXT),
    # Never missing: a bookie that lost its journal would "prove" that acknowledged entries never
    # were. Bookies answer adds with UNAUTHORIZED instead; one that says it plainly is just of no
    # use for this ledger.
    Answer.LIMBO: (_REPLACE, _NEXT, _OPEN, _NEXT),
    Answer.BUSY: (Reaction.RESEND_LATER, _NEXT, _OPEN, _NEXT),
    Answer.DISCONNECTED: (_REPLACE, _NEXT, _OPEN, _NEXT),
    Answer.TIMED_OUT: (_REPLACE, _NEXT, _OPEN, _NEXT),
    Answer.BAD_REQUEST: (_REPLACE, _NEXT, _OPEN, _NEXT),
    Answer.IO_FAILED: (_REPLACE, _NEXT, _OPEN, _NEXT),
    Answer.BAD_VERSION: (_REPLACE, _NEXT, _OPEN, _NEXT),
}

REACTIONS: Final[Mapping[tuple[Call, Answer], Reaction]] = MappingProxyType(
    {
        (call, answer): reaction
        for answer, row in _ROWS.items()
        for call, reaction in zip(_ORDER, row, strict=True)
        if reaction is not None
    }
)
IMPOSSIBLE: Final = frozenset({(Call.ADD, Answer.BAD_DIGEST)})

# A bookie that gives one of these is not to blame for it and is not quarantined.
BLAMELESS: Final = frozenset(
    {
        Answer.OK,
        Answer.DISCONNECTED,
        Answer.NO_ENTRY,
        Answer.NO_LEDGER,
        Answer.FENCED,
        Answer.READ_ONLY,
    }
)

_NOTHING_YET: Final = frozenset({Answer.OK, Answer.NO_ENTRY, Answer.NO_LEDGER})
_MISSING_ANSWERS: Final = frozenset({Answer.NO_ENTRY, Answer.NO_LEDGER})


def reaction(call: Call, answer: Answer) -> Reaction:
    found = REACTIONS.get((call, answer))
    if found is None:
        raise Broken(f"{call.name} was answered {answer.name}, which cannot be")
    return found


def worse_of(remembered: Answer, heard: Answer) -> Answer:
    """What a failed read says in the end, folded over its replicas from `OK` on: absence only if
    nobody had a real trouble, and a lost connection only if nobody had a better reason."""
    if remembered in _NOTHING_YET:
        return heard
    if remembered is Answer.DISCONNECTED and heard not in _MISSING_ANSWERS:
        return heard
    return remembered
