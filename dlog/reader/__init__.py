"""The reader's room: from any place in a log to its tail, exactly once, in order, never past what
is confirmed.

Start with `core` (the walk from segment to segment, a procedure without IO) and `places` (finding
where to start); `segments` answers which segments there are and which may be entered; `message` is
what a user gets; `reader` is the asyncio driver, which reads ahead. May import the floor, wire, the
two contracts; never a backend.
"""
