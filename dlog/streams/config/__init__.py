"""Documents that change while programs run: options of writers, readers and logs, and whatever else
a program hangs on them.

A document is one node of the metadata store with a version that only grows (`document`), changed by
compare-and-set (`changes`). Whoever follows one (`following` decides, `hot` does) has all of a
version in force, or all of the one before: every part is looked over first, then all that changed
are swapped in one turn of the loop. Start reading at `document`.
"""
