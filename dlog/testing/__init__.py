"""What tests of dlog and of programs on it share: conformance suites, the simulator, clusters. May
use anything in `dlog`; nothing in `dlog` but this room uses it. Start reading at `conformance`."""
