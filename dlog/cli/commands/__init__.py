"""One module per command, named as the command is (`ls` lives in `list_logs`, `rm` in `remove`).
Each holds one click command called `command`; the table that maps names to modules is in
`dlog.cli.main`, so that `dlog --help` loads none of them.
"""
