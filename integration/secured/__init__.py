"""A cluster with everything on: TLS to ZooKeeper and to bookies, certificates of clients, names for
both, nodes that are their maker's alone. Whole logs on it, who owns what, and no secret anywhere it
could show."""
