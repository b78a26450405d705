"""The writer's room: one log, one effective writer.

Start with `takeover` (how a handle becomes the writer), then `core` (what happens to a message
until it is acknowledged, and how ledgers follow each other), both without IO; `batcher` is where
user threads put messages in, `writer` is the asyncio driver that ties them together, `policy` says
when to rotate. May import the floor, wire, the two contracts; never a backend.
"""
