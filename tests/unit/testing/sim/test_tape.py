"""Chance on a tape: what is drawn can be drawn again, and nothing is what zeros are."""

from __future__ import annotations

import random

import pytest

from dlog.testing.sim.tape import Chance, Tape, of_seed, of_tape

RATES = (0.001, 0.3, 0.999)  # 1 is no chance


def everything(chance: Chance) -> list[object]:
    """One of each kind of draw."""
    return [
        chance.random(),
        chance.fraction(),
        chance.hits(0.4),
        chance.pick("abc"),
        chance.choice("abc"),
        chance.delay(3.0),
        chance.rate(0.01, 1.0, on=0.5, what="x"),
        chance.uniform(2, 5),
        chance.randrange(10),
        chance.randint(3, 9),
        chance.expovariate(0.5),
        chance.sample(range(20), 3),
        chance.getrandbits(16),
    ]


def test_a_seed_fills_the_tape_and_the_tape_gives_the_same_again() -> None:
    for seed in range(50):
        chance = of_seed(seed)
        drawn = everything(chance)
        assert everything(of_seed(seed)) == drawn
        again = of_tape(chance.tape.values)
        assert everything(again) == drawn
        assert again.tape.drawn == chance.tape.drawn == len(chance.tape.values)


def test_behind_its_end_a_tape_is_all_zeros_and_grows_no_more() -> None:
    chance = of_tape([0.5])
    assert [chance.random() for _ in range(3)] == [0.5, 0.0, 0.0]
    assert chance.tape.values == [0.5]


@pytest.mark.parametrize("rate", RATES)
def test_zero_is_no_fault_the_shortest_delay_and_the_first_option(rate: float) -> None:
    chance = of_tape(())
    assert not chance.hits(rate)
    assert chance.delay(100.0) == 0.0
    assert chance.expovariate(0.01) == 0.0
    assert chance.rate(0.01, 1.0, on=rate, what="x") == 0.0
    assert chance.pick((7, 8)) == 7
    assert chance.choice((7, 8)) == 7
    assert chance.randrange(5) == 0
    assert chance.uniform(2, 9) == 2
    assert chance.sample(range(9), 9) != []


def test_faults_hit_as_often_as_their_rate_says() -> None:
    chance = Chance(Tape(source=random.Random(1)))
    for rate in (0.01, 0.3, 0.9):
        hits = sum(chance.hits(rate) for _ in range(20_000))
        assert abs(hits / 20_000 - rate) < 0.02
    assert not chance.hits(0.0)
    assert chance.hits(1.0)


def test_rates_are_spread_over_their_orders_of_magnitude() -> None:
    chance = Chance(Tape(source=random.Random(1)))
    rates = [chance.rate(0.001, 1.0, on=0.5, what="x") for _ in range(6_000)]
    on = [rate for rate in rates if rate > 0.0]
    assert 0.47 < len(on) / len(rates) < 0.53
    for low in (0.001, 0.01, 0.1):
        assert 0.28 < sum(low <= rate < 10 * low for rate in on) / len(on) < 0.39


def test_no_token_comes_twice_also_on_an_empty_tape() -> None:
    chance = of_tape(())
    tokens = [chance.token() for _ in range(100)]
    assert len(set(tokens)) == 100
    assert all(int(token, 16) > 0 for token in tokens)
    assert chance.tape.drawn == 0, "a token is no draw: it would move all behind it"


def test_a_story_has_the_draws_that_were_not_benign_in_their_own_words() -> None:
    chance = of_tape([0.0, 0.95, 0.9, 0.7, 0.0, 0.99], told=True)
    chance.hits(0.5, "no fault")
    chance.hits(0.5, "the link breaks")
    chance.pick(("calm", "storm"), "weather")
    chance.delay(2.0, "a sync")
    chance.rate(0.1, 1.0, on=0.5, what="late answers")
    chance.rate(0.1, 1.0, on=0.5, what="early answers")
    told = [(draw.at, draw.what.split(" at ")[0].split(" takes ")[0]) for draw in chance.story]
    assert told == [
        (1, "the link breaks"),
        (2, "weather: storm"),
        (3, "a sync"),
        (5, "early answers"),
    ]


def test_nobody_pays_for_a_story_that_is_not_told() -> None:
    chance = of_tape([0.95])
    chance.hits(0.5, "the link breaks")
    assert chance.story == []
