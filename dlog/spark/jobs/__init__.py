"""Ready-made jobs, each a program of its own that can be copied and changed:

    dlog spark export orders ./lake            the same as
    python -m dlog.spark.jobs.export orders ./lake

`session` is what they share: the arguments that say where the logs are, and Spark itself.
"""
