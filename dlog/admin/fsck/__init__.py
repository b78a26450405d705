"""Is every log whole, and what can be done where it is not? (`client.admin.fsck`, `dlog fsck`).

`report` has the values. `lists` walks the list of a log with its pages, `segments` holds one
segment against its ledger, `orphans` says whose the other ledgers are, `rebuild` proves what a page
must have said: procedures and functions without IO. `run` drives them over the stores and `plan`
says what can be repaired from what was found; `repair` does it. Nothing here guesses: what was not
checked is named with its reason, and what cannot be proven is not repaired.
"""
