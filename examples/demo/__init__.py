"""`make demo`: two writers and a reader, each a process of its own, on one log in a scratch
directory. `story` directs and checks every claim it prints; `writer` and `reader` are the programs
it runs, and as small as programs with a log can be.
"""
