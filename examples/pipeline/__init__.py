"""`python -m examples.pipeline`: a log to Parquet and back into a second log, each message once,
while the program that does it is killed and started again. `job` is that program, and what to copy;
`story` writes the first log, kills, and checks."""
