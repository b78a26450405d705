"""An example: processes that share the shards of a stream count its words, while they are added,
taken away, killed and frozen; and at the end each word is counted exactly as often as it was sent.

    python -m examples.wordcount                 in a directory that is gone afterwards
    python -m examples.wordcount zk://…          on a cluster

Messages may be processed twice: a worker that died had processed more than its checkpoint says, and
one that slept goes on with what is somebody else's by now. What makes the *effect* come once is the
table of counts (`counts`), which remembers for each shard how far it is counted and the largest
fencing token that it saw, in the same transaction as the counts.
"""
