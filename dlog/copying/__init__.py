"""Copying a log from one place to another, and going on with a copy that was cut short.

`target` decides whether a log may be copied into, and makes it the copy of which log, from which
seq on. `copier` reads the one and writes the other. What makes it safe is elsewhere: the target has
one writer, by fencing, and seqs have no gaps, so its end says what is still to be copied.
"""
