"""(state, input) pairs of the cores that no history may meet, each with the reason why. Patterns
are those of `fnmatch`; the first that fits gives the reason."""

from __future__ import annotations

from fnmatch import fnmatchcase

# Table, state, input, reason.
RULES: tuple[tuple[str, str, str, str], ...] = (
    # --- the appender's places
    ("appender's place", "failed, [!gv]*", "*", "a failure leaves all places"),
    ("appender's place", "stopped, [!gvl]*", "*", "a stop leaves all places but the live ones"),
    ("appender's place", "*, connecting", "LAC *", "no LAC is written to a bookie not yet there"),
    *(
        ("appender's place", f"*, {state}", said, "a place without a link is found by no link")
        for state in ("connecting", "vacant")
        for said in ("down", "acks", "busy", "*refusal")
    ),
    *(
        ("appender's place", f"*, {state}", said, "a place is connected once")
        for state in ("preparing", "ready", "naming", "live")
        for said in ("link", "no link")
    ),
    *(
        ("appender's place", "open, vacant", said, "a vacant place has asked for nothing")
        for said in ("link", "no link", "LAC *")
    ),
    *(
        ("appender's place", f"*, {state}", "LAC *", "its LAC was answered before it was ready")
        for state in ("ready", "naming")
    ),
    # --- the appender as a whole
    *(
        ("appender", state, said, "an answer follows a change")
        for state in ("open", "being born")
        for said in ("changed", "not changed *")
    ),
    ("appender", "stopped", "put", "a handle that closes takes no entries"),
    ("appender", "stopped", "publish", "a handle that closes publishes nothing"),
    ("appender", "failed", "publish", "a handle that failed publishes nothing"),
    # --- recovery
    ("recovery", "fencing", "read: *", "nothing is read before the fence covers"),
    *(
        ("recovery", state, said, "nothing was written back")
        for state in ("fencing", "sizing")
        for said in ("acks", "busy", "refusal")
    ),
    ("recovery", "sizing", "down", "nothing was written back"),
    ("recovery", "found", "*", "nobody tells it anything behind the end"),
    # --- connections
    *(
        (f"{kind} connection", "down", said, "a driver is deaf to a connection that is down")
        for kind in ("data", "control")
        for said in ("bytes", "sweep", "question")
    ),
    # --- the writer
    ("writer", "[!o]*", "push", "only an open writer pushes"),
    ("writer", "[!h]*", "push again", "only healing pushes again"),
    ("writer", "closed", "ledger closed", "the last ledger is closed before the handle is"),
    # --- a standby, and what it keeps ready
    *(
        ("standby", "beginning", said, "it has seen no log, and made no ledger")
        for said in ("prepare", "failed")
    ),
    ("standby", "[!t]*", "brings", "only a takeover brings something along"),
    *(
        ("standby", "taking over", said, "its loop was told to stop, and its end waits")
        for said in ("prepare", "leave")
    ),
    ("ready ledger", "[!n]*", "made", "it holds one ledger"),
    ("ready ledger", "[!t]*", "offered", "what is offered was taken"),
    *(
        ("ready ledger", "[!o]*", said, "what is listed, or refused, was offered")
        for said in ("refused", "given")
    ),
    ("ready ledger", "taken", "let go", "a takeover ends before what it took is let go"),
)


def why_impossible(table: str, state: str, said: str) -> str | None:
    for of_table, of_state, of_said, reason in RULES:
        if of_table == table and fnmatchcase(state, of_state) and fnmatchcase(said, of_said):
            return reason
    return None
