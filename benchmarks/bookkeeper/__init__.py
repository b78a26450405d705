"""Ledgers on real bookies, beside the stock Java client in the same run on the same servers.

Begin with `__main__` (the command) and `rows` (which rows there are). Each row has a module that
measures it and says its exact statistic at the top. `stage` starts what a row needs: four bookies
that sync their journals, the Java client (`java/Peer.java`) and ours (`ours`), each in a process of
its own that answers the same questions, so that processor time is that of the client alone.
"""
