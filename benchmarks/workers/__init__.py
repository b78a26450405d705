"""What groups of workers cost: throughput beside a bare reader, hand-off, recovery, balance."""
