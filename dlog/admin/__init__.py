"""The admin's room: what is said and done about logs from outside their writers and readers.

`describe` and `why` read (values in `summary` and `why`), `remove` ends a log as a procedure;
`admin` is the async face. May import the floor, wire, the two contracts, writer and reader; never a
backend.
"""
