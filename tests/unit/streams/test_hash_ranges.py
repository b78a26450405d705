"""Hash ranges cover the space, each hash once; a key's hash is the same for ever."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ConfigError
from dlog.streams.routing.hashing import KEY_HASH_MAX, key_hash
from dlog.streams.routing.ranges import WHOLE_SPACE, HashRange, HashRanges, even_ranges

hashes = st.one_of(st.integers(0, KEY_HASH_MAX), st.sampled_from([0, 1, KEY_HASH_MAX]))


def test_a_key_hash_is_the_first_four_bytes_of_md5_least_first() -> None:
    assert key_hash(b"") == 0xD98C1DD4  # MD5 of nothing begins with d4 1d 8c d9
    assert key_hash(b"a") == 0xB975C10C


@given(st.binary(max_size=40))
def test_a_key_hash_is_in_the_space(key: bytes) -> None:
    assert key_hash(key).to_bytes(4, "little") == hashlib.md5(key).digest()[:4]
    assert WHOLE_SPACE.contains(key_hash(key))


@pytest.mark.parametrize(("first", "last"), [(-1, 5), (5, 4), (0, KEY_HASH_MAX + 1)])
def test_a_range_lies_in_the_space(first: int, last: int) -> None:
    with pytest.raises(ConfigError):
        HashRange(first, last)


@given(hashes, hashes, hashes)
def test_a_range_is_split_and_joined_without_a_hash_lost(one: int, other: int, at: int) -> None:
    whole = HashRange(min(one, other), max(one, other))
    if not whole.first_hash < at <= whole.last_hash:
        with pytest.raises(ConfigError, match="would be empty"):
            whole.split_at(at)
        return
    low, high = whole.split_at(at)
    assert high.first_hash == at
    assert not low.contains(at)
    assert len(low) + len(high) == len(whole)
    assert low.joined(high) == high.joined(low) == whole


@pytest.mark.parametrize("other", [HashRange(11, 12), HashRange(9, 12), HashRange(0, 9)])
def test_only_neighbours_are_joined(other: HashRange) -> None:
    with pytest.raises(ConfigError, match="no neighbours"):
        HashRange(0, 9).joined(other)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 256, 1000])
def test_even_ranges_cover_the_space_evenly(count: int) -> None:
    parts = even_ranges(count)
    assert len(parts) == count
    assert sum(map(len, parts)) == KEY_HASH_MAX + 1
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    owned = HashRanges((each, index) for index, each in enumerate(parts))
    for index, each in enumerate(parts):  # CL-14 for ranges: both ends belong to it
        assert owned.owner_of(each.first_hash) == owned.owner_of(each.last_hash) == index


@pytest.mark.parametrize("count", [0, -1, KEY_HASH_MAX + 2])
def test_a_space_of_no_parts_is_refused(count: int) -> None:
    with pytest.raises(ConfigError):
        even_ranges(count)


@given(st.sets(st.integers(1, KEY_HASH_MAX), max_size=8), hashes, st.randoms())
def test_each_hash_has_the_one_owner_whose_range_holds_it(cuts, hash, random) -> None:
    firsts = [0, *sorted(cuts)]
    lasts = [first - 1 for first in firsts[1:]] + [KEY_HASH_MAX]
    owned = [(HashRange(first, last), first) for first, last in zip(firsts, lasts, strict=True)]
    shuffled = list(owned)
    random.shuffle(shuffled)
    made = HashRanges(shuffled)
    assert list(made) == owned
    assert made == HashRanges(owned)
    assert len(made) == len(owned)
    assert [made.owner_of(hash)] == [owner for each, owner in owned if each.contains(hash)]
    assert made.range_of(hash).contains(hash)
    key = str(hash).encode()
    assert made.owner_of_key(key) == made.owner_of(key_hash(key))


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "nobody owns the hash 00000000"),
        ([(0, 9)], "nobody owns the hash 0000000a"),
        ([(1, KEY_HASH_MAX)], "nobody owns the hash 00000000"),
        ([(0, 9), (11, KEY_HASH_MAX)], "nobody owns the hash 0000000a"),
        ([(0, 9), (9, KEY_HASH_MAX)], "two ranges hold the hash 00000009"),
        ([(0, KEY_HASH_MAX), (5, 6)], "two ranges hold the hash 00000005"),
    ],
)
def test_a_gap_or_an_overlap_cannot_be_made(parts: list[tuple[int, int]], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        HashRanges((HashRange(*each), "owner") for each in parts)


@pytest.mark.parametrize("hash", [-1, KEY_HASH_MAX + 1])
def test_what_is_no_hash_has_no_owner(hash: int) -> None:
    with pytest.raises(ConfigError):
        HashRanges([(WHOLE_SPACE, "a")]).owner_of(hash)


def test_two_are_the_same_if_each_hash_has_the_same_owner_in_both() -> None:
    def of(cut: int, low: str, high: str) -> HashRanges[str]:
        return HashRanges([(HashRange(0, cut - 1), low), (HashRange(cut, KEY_HASH_MAX), high)])

    one = of(7, "a", "b")
    assert one == of(7, "a", "b")
    assert hash(one) == hash(of(7, "a", "b"))
    for other in (of(8, "a", "b"), of(7, "b", "a"), of(7, "a", "c"), "a"):
        assert one != other
    assert len({one, of(7, "a", "b"), of(8, "a", "b"), of(7, "b", "a")}) == 3


def test_even_ranges_of_a_power_of_two_are_told_apart_by_the_first_bits() -> None:
    assert even_ranges(1) == (WHOLE_SPACE,)
    assert [each.first_hash for each in even_ranges(4)] == [n << 30 for n in range(4)]


@pytest.mark.parametrize("hash", [-1, KEY_HASH_MAX + 1])
def test_what_is_no_hash_is_in_no_range(hash: int) -> None:
    with pytest.raises(ConfigError):
        HashRanges([(WHOLE_SPACE, "a")]).range_of(hash)
