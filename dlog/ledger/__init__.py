"""Ledgers: bounded, single-writer sequences of entries. Start at `store`, the contract.

Each backend has a room here and nobody above imports one by name. A backend may touch the floor,
wire and the two contracts, and never another backend.
"""
