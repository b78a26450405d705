"""The command line, `dlog`. It uses only the public names of the library, so that whatever it can
do, a program can do as well. Data goes to standard output and everything else to standard error;
bytes of messages never reach a terminal raw. Start reading at `main`; each command is one module of
`commands`, loaded when it is called, and what they share lies beside `main`.
"""
