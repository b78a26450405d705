"""Two services share one log and one database, and hand the work over: as planned, after a crash,
and from one that is frozen and wakes too late. Start reading at `service`, which is what a real
service would look like; `story` makes their lives hard, checks, and draws what happened.

    python -m examples.handover [URL]
"""
