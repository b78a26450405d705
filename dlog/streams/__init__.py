"""Many logs that act as one: a stream is a named set of shards, and each shard is one log.

`routing/` says which shard, or which endpoint, a key belongs to; `health/` which endpoints to leave
alone for a while, and stands on `routing/` where it brings messages to the others; `config/`
carries documents that change while programs run. May use writers, readers and the admin of one log,
and never a backend.
"""
