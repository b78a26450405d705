"""The stock Java client and ours on the same ledgers, each reading, tailing, fencing, recovering
and closing what the other wrote, on every release there is. `java_ledgers` drives the Java side;
`raw` looks at the bytes that bookies and ZooKeeper keep, past both clients."""
