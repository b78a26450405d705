"""What streams cost: routing, health, and what is built on them. See `__main__`."""
