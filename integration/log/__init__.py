"""Whole logs on real ZooKeeper and bookies: what is available while something is not, what becomes
of a log when a bookie is lost at any step, the crash tests of the embedded backend, and everything
at once."""
