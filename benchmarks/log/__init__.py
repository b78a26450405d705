"""Logs on a cluster, beside DistributedLog and the stock Java client, on the same bookies.

Begin with `__main__` (the command) and `rows` (which rows there are). Each row has a module that
measures it and says its exact statistic at the top. `sides` asks those that are compared, each in a
process of its own: `ours`, `java/DistributedLogPeer.java`, and for bare adds the Java client of
`benchmarks.bookkeeper`, whose stage this one is, too.
"""
