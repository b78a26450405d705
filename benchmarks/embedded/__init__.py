"""Every row of the table in docs/PERFORMANCE.md for logs in files, beside peers in the same run.

Begin with `__main__` (the command) and `rows` (which rows there are). Each row has a module that
measures it and says its exact statistic at the top; `peers` holds the others: a plain file, SQLite
and LMDB. `children` are the other processes: a reader that tails, a writer that will be frozen.
"""
