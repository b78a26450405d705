"""Tests against real servers. They run wherever Java and Maven are, and are skipped by name where
they are not; `dlog.testing.cluster` brings, starts and ends the servers. Start reading at
`conftest`, which hands them out."""
