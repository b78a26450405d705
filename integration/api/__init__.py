"""The tests of both APIs again, unchanged, on logs of a real cluster. Each file here brings one
module of `tests/api`; what those ask of `file:` URLs alone is run there."""
