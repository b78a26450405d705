"""Where the small, precious facts live: one versioned tree with compare-and-set. `store` is the
contract and `dlog.testing.conformance.meta_store` its proof; `memory` and `sqlite` (with its own
`sqlite_*` modules) are backends, which nobody but `dlog.backends` imports by name. The backends may
touch files, threads and the event loop; the rest of the room may not. Start reading at `store`."""
