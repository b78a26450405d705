"""The simulator by command: `python -m dlog.testing.sim --help`."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlog.testing.sim import corpus, story, tiers
from dlog.testing.sim.planted import Plant, all_plants, planted
from dlog.testing.sim.planted.shown import show
from dlog.testing.sim.runs import (
    Finding,
    SavedTape,
    StalePlant,
    Tally,
    hunt,
    load_tape,
    run_many,
    run_one,
    shrink_tape,
)
from dlog.testing.sim.streams_life_pairs import is_pair, table
from dlog.testing.sim.tape import Chance, of_seed
from dlog.testing.sim.worlds import WORLDS

NONZERO_GOAL = 30


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dlog.testing.sim", description="Histories of dlog in simulated worlds."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    worlds = sorted(WORLDS)

    run = commands.add_parser("run", help="many histories of a world")
    run.add_argument("world", choices=worlds)
    run.add_argument("--seeds", nargs=2, type=int, metavar=("FIRST", "COUNT"))
    run.add_argument("--seconds", type=_seconds)
    run.add_argument("--first", type=int, default=0, help="the first seed, with --seconds")
    _fixing(run)
    run.set_defaults(do=_run)

    tell = commands.add_parser("tell", help="one history, in words")
    tell.add_argument("world", choices=worlds)
    tell.add_argument("which", type=_which, metavar="SEED|TAPE.json")
    tell.add_argument("--plain", action="store_true", help="lines instead of a chart")
    tell.add_argument("--plant", type=_plant, help="with this bug planted")
    _fixing(tell)
    tell.set_defaults(do=_tell)

    shrunk = commands.add_parser("shrink", help="the smallest tape that breaks the same promise")
    shrunk.add_argument("world", choices=worlds)
    shrunk.add_argument("which", type=_which, metavar="SEED|TAPE.json")
    shrunk.add_argument("-o", "--output", type=Path)
    shrunk.add_argument("--seconds", type=_seconds, default=60.0)
    shrunk.add_argument("--plant", type=_plant, help="with this bug planted")
    _fixing(shrunk)
    shrunk.set_defaults(do=_shrink)

    plants = commands.add_parser("plants", help="which planted bugs are noticed, by what, how fast")
    plants.add_argument("names", nargs="*", metavar="NAME", type=_plant)
    plants.add_argument("--seconds", type=_seconds, default=60.0, help="for each of them")
    plants.add_argument(
        "--record",
        action="store_true",
        help="record a history that notices each of these, or each one without a current record",
    )
    plants.add_argument(
        "--reduce",
        action="store_true",
        help="drop histories from the corpus of a slow world if others notice the same bugs",
    )
    plants.add_argument(
        "--table", action="store_true", help="print which tier and which test notice each of them"
    )
    plants.add_argument(
        "--tier",
        choices=["check", "test"],
        default="test",
        help="with --table: look for tests up to this tier only",
    )
    plants.set_defaults(do=_plants)

    shrinkage = commands.add_parser("shrinkage", help="how small failures of planted bugs become")
    shrinkage.add_argument("names", nargs="*", metavar="NAME", type=_plant)
    shrinkage.add_argument("--seconds", type=_seconds, default=60.0, help="for each of them")
    shrinkage.set_defaults(do=_shrinkage)

    digest = commands.add_parser("digest", help="a line for the transcript of each history")
    digest.add_argument("world", choices=worlds)
    digest.add_argument("first", type=int)
    digest.add_argument("count", type=_count)
    digest.set_defaults(do=_digest)

    chosen = parser.parse_args(arguments)
    if getattr(chosen, "seeds", None) and chosen.seeds[1] < 1:
        parser.error(f"--seeds: {chosen.seeds[1]} histories prove nothing: give a number from 1 on")
    tape = getattr(chosen, "which", None)
    if isinstance(tape, SavedTape) and tape.world != chosen.world:
        parser.error(f"the tape is of the world {tape.world}, not of {chosen.world}")
    status: int = chosen.do(chosen)
    return status


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} histories prove nothing: give a number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    if not 0.0 < float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} seconds prove nothing: give a number above 0")
    return float(text)


def _plant(name: str) -> str:
    if name not in all_plants():
        raise argparse.ArgumentTypeError(f"no planted bug {name!r}: `plants` names them all")
    return name


def _which(text: str) -> int | SavedTape:
    """A seed, or a tape that is kept."""
    try:
        return load_tape(Path(text)) if text.endswith(".json") else int(text)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise argparse.ArgumentTypeError(f"no seed and no tape: {text!r} ({error!r})") from None


def _option(text: str) -> str:
    if not text.partition("=")[0].isidentifier() or "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not OPTION=VALUE")
    return text


def _fixing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fix",
        action="append",
        default=[],
        type=_option,
        metavar="OPTION=VALUE",
        help="an option of the weather, instead of drawing it",
    )


def _fixed(chosen: argparse.Namespace) -> dict[str, Any]:
    fixed: dict[str, Any] = {}
    for each in chosen.fix:
        name, _, value = each.partition("=")
        try:
            fixed[name] = json.loads(value)
        except ValueError:
            fixed[name] = value
    return fixed


def _run(chosen: argparse.Namespace) -> int:
    first, count = chosen.seeds or (chosen.first, None)
    seconds = chosen.seconds if count is not None or chosen.seconds is not None else 10.0
    tally = run_many(chosen.world, first, count, seconds=seconds, **_fixed(chosen))
    _show(tally)
    return 1 if tally.findings else 0


def _show(tally: Tally) -> None:
    _say(
        f"{tally.histories} histories of {tally.world} in {tally.took_s:.1f} s, "
        f"{tally.per_minute:,.0f} a minute; a history has {tally.events // tally.histories} "
        f"events and {tally.draws // tally.histories} draws"
    )
    marks = {name: count for name, count in tally.marks.items() if not is_pair(name)}
    if len(marks) < len(tally.marks):
        _say(f"\nwhich features met in one stream, in how many\n{table(tally.marks)}")
    for title, counted in (("what happened", marks), ("crash points", tally.points)):
        _say(f"\n{title}")
        for name, count in sorted(counted.items(), key=lambda each: (-each[1], each[0])):
            _say(f"{count:>10}  {name}")
    _say(f"\n{len(tally.findings)} violations")
    by_promise: dict[str, list[Finding]] = {}
    for finding in tally.findings:
        by_promise.setdefault(finding.promise, []).append(finding)
    for promise, found in sorted(by_promise.items()):
        seeds = ", ".join(str(each.seed) for each in found[:10])
        _say(f"  {promise}: {len(found)}, seeds {seeds}\n    {found[0].what[:300]}")
        _say(f"    {found[0].repeat}")


def _chance_of(chosen: argparse.Namespace, fixed: dict[str, Any], *, told: bool) -> Chance:
    if isinstance(chosen.which, SavedTape):
        for name, value in chosen.which.fixed.items():
            fixed.setdefault(name, value)
        return chosen.which.chance(told=told)
    return of_seed(chosen.which, told=told)


def _planted(chosen: argparse.Namespace, fixed: dict[str, Any]) -> Any:
    if chosen.plant is None:
        return contextlib.nullcontext()
    plant = all_plants()[chosen.plant]
    for name, value in plant.fixed.items():
        fixed.setdefault(name, value)
    return planted(plant)


def _tell(chosen: argparse.Namespace) -> int:
    fixed = _fixed(chosen)
    with _planted(chosen, fixed):
        chance = _chance_of(chosen, fixed, told=True)
        world, finding = run_one(chosen.world, chance, told=True, **fixed)
    _say(story.table(chance.story))
    if world is not None:
        _say("")
        _say(story.transcript(world) if chosen.plain else story.chart(world))
    if finding is not None:
        _say(f"\n{finding.promise}: {finding.what}")
        if finding.promise.startswith("raised") and finding.error is not None:
            raise finding.error
    return 0 if finding is None else 1


def _shrink(chosen: argparse.Namespace) -> int:
    fixed = _fixed(chosen)
    with _planted(chosen, fixed):
        chance = _chance_of(chosen, fixed, told=False)
        _, finding = run_one(chosen.world, chance, **fixed)
        if finding is None:
            _say("nothing is wrong with this history")
            return 1
        shrunk = shrink_tape(chosen.world, finding.values, seconds=chosen.seconds, **fixed)
        told = SavedTape(chosen.world, shrunk.values, shrunk.fault, finding.what, fixed)
        chance = told.chance(told=True)
        world, finding = run_one(chosen.world, chance, told=True, **fixed)
    before = len([value for value in chance.tape.values if value > 0.0])
    _say(
        f"{shrunk.fault}: {len(shrunk.values)} draws, {before} of them not benign, "
        f"after {shrunk.tries} tries and {shrunk.took_s:.1f} s\n"
    )
    _say(story.table(chance.story))
    if world is not None:
        _say(f"\n{story.chart(world)}")
    if finding is not None:
        _say(f"\n{finding.promise}: {finding.what}")
        told.note = finding.what
    if chosen.output is not None:
        told.save(chosen.output)
    return 0


def _plants(chosen: argparse.Namespace) -> int:
    known = all_plants()
    if chosen.record or chosen.reduce:
        return _record(chosen, known) or (_reduce(known) if chosen.reduce else 0)
    if chosen.table:
        return _table(chosen, known)
    names = chosen.names or sorted(known)
    killed, shown, unexplained = 0, 0, []
    for name in names:
        plant = known[name]
        try:
            found = hunt(plant, seconds=chosen.seconds)
        except StalePlant as error:
            unexplained.append(name)
            _say(f"stale     {error}")
            continue
        if found.finding is not None:
            killed += 1
            _say(
                f"killed    {name:<52} {plant.rule:<16} by {found.finding.promise:<8} after "
                f"{found.histories:>6} histories of {plant.world}, {found.took_s:6.2f} s"
            )
            continue
        told = show(plant)
        is_explained = plant.survives is not None and plant.shown_by is None
        if told is not None:
            shown += 1
            _say(f"shown     {name:<52} {plant.rule:<16} by {told.by}, {told.took_s:6.2f} s")
            continue
        _say(
            f"survives  {name:<52} {plant.rule:<16} "
            f"{found.histories} histories of {plant.world}, {found.took_s:.1f} s: "
            f"{plant.survives if is_explained else _unexplained(plant)}"
        )
        if not is_explained:
            unexplained.append(name)
    _say(
        f"\n{killed} of {len(names)} killed by histories, {shown} by the test that each names, "
        f"{len(unexplained)} of the others unexplained"
    )
    return 1 if unexplained else 0


def _unexplained(plant: Plant) -> str:
    if plant.survives is None:
        return "UNEXPLAINED"
    return f"UNEXPLAINED: {plant.shown_by} does not fail, or is not here"


def _record(chosen: argparse.Namespace, known: dict[str, Plant]) -> int:
    """The file is written after each of them, so that a run that is stopped can go on."""
    kept = {name: each for name, each in corpus.load().items() if name in known}
    caught = [name for name, plant in sorted(known.items()) if plant.survives is None]
    missing = [name for name in caught if not corpus.is_current(kept.get(name), known[name])]
    silent = 0
    for name in (chosen.names or missing) if chosen.record else ():
        told = corpus.find_telling(known[name], seconds=chosen.seconds)
        if told is None:
            silent += 1
            kept.pop(name, None)
            _say(f"none      {name}")
        else:
            kept[name] = told
            for other in [each for each in kept.values() if each.by == name]:
                kept[other.name] = replace(other, by=None)  # this history may not notice it
            _say(f"recorded  {name:<52} seed {told.seed} of {told.world}, {told.events} events")
        corpus.save(kept.values())
    return 1 if silent else 0


def _table(chosen: argparse.Namespace, known: dict[str, Plant]) -> int:
    deaths = []
    for name in chosen.names or sorted(known, key=lambda name: (known[name].world, name)):
        deaths.append(tiers.death_of(known[name], hunted=chosen.tier == "test"))
        _say(str(deaths[-1]))
    _say("\n" + "\n".join(tiers.summary(deaths)))
    return 1 if any(each.tier is None for each in deaths) else 0


def _reduce(known: dict[str, Plant]) -> int:
    for told in corpus.reduce(corpus.load(), known):
        if told.by is not None:
            _say(f"{told.world:<14} {told.name:<52} noticed by the history of {told.by}")
        reduced = {**corpus.load(), told.name: told}
        corpus.save(reduced.values())
    return 0


def _shrinkage(chosen: argparse.Namespace) -> int:
    known = all_plants()
    names = chosen.names or sorted(name for name, each in known.items() if each.survives is None)
    small = tried = 0
    began_s = time.monotonic()
    for name in names:
        plant = known[name]
        found = hunt(plant, seconds=chosen.seconds)
        if found.finding is None:
            _say(f"not found {name}")
            continue
        tried += 1
        values = found.finding.values
        with planted(plant):
            shrunk = shrink_tape(plant.world, values, seconds=chosen.seconds, **plant.fixed)
        small += shrunk.nonzero <= NONZERO_GOAL
        before = sum(value > 0.0 for value in values)
        _say(
            f"{shrunk.nonzero:>4} of {before:>5} draws left, {shrunk.tries:>5} tries, "
            f"{shrunk.took_s:5.1f} s  {name} ({shrunk.fault})"
        )
    _say(
        f"\n{small} of {tried} failures became {NONZERO_GOAL} draws or fewer, "
        f"in {time.monotonic() - began_s:.0f} s"
    )
    return 0 if tried == len(names) and small >= 0.8 * tried else 1


def _digest(chosen: argparse.Namespace) -> int:
    broken = 0
    for seed in range(chosen.first, chosen.first + chosen.count):
        chance = of_seed(seed, told=True)
        world, finding = run_one(chosen.world, chance, told=True)
        told = [story.table(chance.story), "" if world is None else story.transcript(world)]
        text = "\n".join([*told, str(finding), str(chance.tape.drawn)])
        _say(f"{seed} {hashlib.sha256(text.encode()).hexdigest()}")
        broken += finding is not None
    return 1 if broken else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
