"""The protocol decisions of the BookKeeper client, without IO, clock or chance of their own: facts
in, decisions out. A simulator runs exactly this code. Start with `quorum` and `changes`, which the
others share."""
