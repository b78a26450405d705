"""The contracts as checks that every backend runs: a backend has no private semantics.

Each module is one contract: a list of named async functions that take a way to make stores and
raise AssertionError. They know no test framework, so that a backend outside this repository can
run them, too. They assume only what the contract says: no first version, no instant delivery.
"""
