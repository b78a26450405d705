"""A writer as a process: appends what it is told to, a line of values at a time, and answers each
line with a line of JSON. When another writer took the log over, it says who, and ends."""

from __future__ import annotations

import json
import sys

import dlog


def main(url: str, log: str, owner: str) -> None:
    with dlog.open_writer(log, url=url, owner=owner) as writer:
        answer(epoch=writer.epoch)
        for line in sys.stdin:
            try:
                ids = writer.append_many([word.encode() for word in line.split()])
            except dlog.Fenced as error:
                answer(fenced=error.message, winner=error.winner.name, epoch=error.epoch)
                return
            answer(ids=[str(each) for each in ids])


def answer(**told: object) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
