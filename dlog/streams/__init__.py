"""Many logs that act as one: a stream is a named set of shards, and each shard is one log.

`routing/` says which shard, or which endpoint, a key belongs to; `health/` which endpoints to leave
alone for a while; `config/` carries documents that change while programs run. None of the three
knows of the others. May use writers, readers and the admin of one log, and never a backend.
"""
