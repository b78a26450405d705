"""Which shard, or which endpoint, a key belongs to. Pure: nothing here waits, listens or counts
time. Begin with `hashing` (a key becomes a number), then `ranges` (shards own parts of the space of
these numbers) and `ring` (endpoints own arcs of it); `router` puts pins and turns on top of a ring.
"""
