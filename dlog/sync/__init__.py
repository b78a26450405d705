"""The sync room: twins of the async handles for programs without an event loop.

`portal` is the one loop thread of a client; `client`, `writer`, `reader` and `admin` are thin faces
that hand work over to it. Messages do not cross threads one by one: the batcher is filled here, and
batches are read over there.
"""
