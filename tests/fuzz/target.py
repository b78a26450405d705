"""What is fuzzed: a decoder, where its valid inputs come from, and what must hold for any input.

`check` is a pure function of the bytes, so that whatever failed is kept as a file of them and tried
again for ever. It returns a word for what came of it, or raises one of the errors that the decoder
is documented to raise; anything else that comes out is a finding, and so is `Finding` itself: the
decoder said something that is not so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from dlog.errors import Corrupt, DlogError, FormatError
from tests.fuzz.mutation import Mutator


class Finding(AssertionError):
    """The decoder broke a promise."""


def require(holds: bool, promise: str, *evidence: object) -> None:
    if not holds:
        raise Finding(f"{promise}: {', '.join(repr(each)[:300] for each in evidence)}")


T = TypeVar("T")


def must(call: Callable[[], T], promise: str) -> T:
    """What may not refuse, since what it is given was accepted."""
    try:
        return call()
    except DlogError as error:
        raise Finding(f"{promise}: {type(error).__name__}: {error}") from None


class Target:
    """A decoder with its oracle."""

    name: str
    refusals: tuple[type[Exception], ...] = (Corrupt, FormatError)
    dictionary: tuple[bytes, ...] = ()
    input_bytes_max = 1 << 12  # of mutated inputs; longer ones are cut
    # Peak of memory over the input, and what a call may take at least: reliability has its bounds
    # in one place, tests.fuzz.campaign, and a target that needs other ones says why.
    memory_factor = 4.0
    memory_slack_bytes = 64 << 10

    def seeds(self) -> list[bytes]:
        """Valid inputs; `check` accepts each of them."""
        raise NotImplementedError

    def mutate(self, mutator: Mutator, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        return mutator.mutate(raw, corpus)

    def check(self, raw: bytes) -> str:
        raise NotImplementedError
