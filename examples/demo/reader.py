"""A tailing reader as a process: prints each message as it comes, a line of JSON each, until it
meets the one that says the log ends here."""

from __future__ import annotations

import json
import sys

import dlog


def main(url: str, log: str, last_value: str) -> None:
    with dlog.open_reader(log, url=url, follow=True) as reader:
        for message in reader:
            value = (message.value or b"").decode()
            told = {"id": str(message.id), "seq": message.seq, "epoch": message.epoch}
            print(json.dumps(told | {"value": value}), flush=True)
            if value == last_value:
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
