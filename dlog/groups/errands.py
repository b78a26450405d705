"""What each errand of a core is, as a procedure: the same for whoever runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dlog.effects import Procedure
from dlog.errors import Broken
from dlog.groups import presence
from dlog.groups.asks import (
    Ask,
    Bury,
    Drop,
    Leave,
    Look,
    LookAtWorker,
    Prove,
    ReadGroup,
    Register,
    Release,
    Renew,
    Renounce,
    Ring,
    Save,
    Take,
    WriteWeights,
)
from dlog.groups.shards import GroupShard
from dlog.groups.store import LeaseStore, take
from dlog.groups.view import WorkerId
from dlog.groups.weights import write_weights


class Errands:
    """`read_shards` tells which shards the stream has, as fresh as its own read behind a sync;
    `numbers` are theirs."""

    def __init__(
        self,
        me: WorkerId,
        leases: LeaseStore,
        read_shards: Callable[[], Procedure[list[GroupShard]]],
        numbers: Mapping[str, int],
    ) -> None:
        self._me = me
        self._leases = leases
        self._places = leases.places
        self._read_shards = read_shards
        self._numbers = numbers

    def of(self, ask: Ask) -> Procedure[Any]:
        me, leases, places = self._me, self._leases, self._places
        match ask:
            case Register(domain=domain):
                return presence.register(places, me, domain)
            case Renew():
                return presence.beat(
                    places,
                    ask.seen,
                    ask.counter,
                    ask.holds,
                    ask.coming,
                    ask.done,
                    ask.rings,
                    ask.waits,
                )
            case ReadGroup():
                return self._read_group()
            case WriteWeights(weights=weights):
                by_number = {self._numbers[shard]: each for shard, each in weights.items()}
                return write_weights(places, by_number)
            case LookAtWorker(worker=worker):
                # What is old delays a verdict, and whoever buries looks behind a sync.
                return presence.read_worker(places, worker, fresh=False)
            case Bury(worker=worker, counter=counter):
                return presence.bury(places, worker, counter)
            case Ring(worker=worker, shards=shards):
                return presence.ring(places, worker, shards)
            case Leave():
                return presence.leave(places, me)
            case Look(shard=shard):
                return leases.look(shard)
            case Take(shard=shard):
                return take(
                    leases, shard, me, victim=ask.victim, over=ask.over, again=ask.is_announced
                )
            case Renounce(shard=shard):
                return leases.renounce(shard, me)
            case Save(held=held, checkpoint=checkpoint):
                return leases.save(held, me, checkpoint)
            case Prove(held=held):
                return leases.prove(held, me)
            case Release(held=held, checkpoint=last, is_finished=is_finished):
                end = leases.finish if is_finished else leases.release
                return end(held, me, last)
            case Drop(held=held):
                return leases.drop(held, me)
            case _:
                raise Broken(f"no errand for {type(ask).__name__}")

    def _read_group(self) -> Procedure[Any]:
        shards = yield from self._read_shards()
        workers = yield from presence.read_workers(self._places, self._me)
        return shards, workers
