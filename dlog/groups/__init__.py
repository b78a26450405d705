"""Groups: workers that share the shards of a stream, each shard consumed by one of them at a time.

Who has which shard stands in leases, in a store (`store`): a node for each shard (`meta_leases`),
or a small log for each (`log_leases`). `plan` says who should have which, without IO; `core` is one
worker as a state machine, `consumer` one shard that it works on. What is safe rests on compare-and-
set and on epochs; clocks only say when to give up waiting. Start reading at `leases`.
"""
