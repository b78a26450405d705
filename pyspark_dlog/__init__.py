"""Spark imports each top-level package of this kind of name when it looks for a format that it does
not know, in every application: so this one imports nothing but what Spark has loaded by then."""

from dlog.spark.source import DefaultSource

__all__ = ["DefaultSource"]
