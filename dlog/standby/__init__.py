"""The standby room: ready to become the writer of a log, with everything prepared that can be.

`core` says what is kept ready and when it is replaced; `standby` drives it, reads along, and opens
the writer.
"""
