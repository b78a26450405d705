"""Logs as tables of Spark: `spark.read.format("dlog")`, with the options and columns of Spark's
Kafka source, so that a job is ported by changing the format and the address.

`source` is what Spark finds by itself (through `pyspark_dlog`): it reads options and hands out the
parts. `batch` plans on the driver and reads on the executors; `stream` does so again and again, and
how much of it at a time is decided in `admission`, without IO. What they share: `options` and
`places` (text to values, refused by name), `columns` (messages to Arrow), `access` (one client for
each process and address).

Everything here stands on public names of dlog, pyarrow, and the few base classes of pyspark.
"""
