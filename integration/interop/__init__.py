"""The stock Java client and ours on the same ledgers, each reading, tailing, fencing, recovering
and closing what the other wrote, on every release there is. `java_ledgers` drives the Java side;
what bookies really keep is looked at with `dlog.testing.raw_ledgers`, past both clients."""
