"""A shop that keeps its orders in a log, and the test that drives it through takeovers, rotations,
lost bookies and kills, in milliseconds. Start reading in `test_shop`."""
