"""What kazoo says, in our words: each refusal becomes a typed error, each lost answer one that says
whether the write may have happened. A code that is not in the tables is `Broken`: guessing an
outcome would be worse."""

from __future__ import annotations

from kazoo import exceptions as kazoo

from dlog.errors import (
    AlreadyExists,
    AuthError,
    Broken,
    ConfigError,
    Conflict,
    DlogError,
    NotFound,
    Outcome,
    TooLarge,
    Unavailable,
    Unsupported,
)

# The server looked at the call and refused it: certainly not applied. What to tell, per code.
_REFUSED: dict[type[Exception], tuple[type[DlogError], str]] = {
    kazoo.NoNodeError: (NotFound, "there is no node {path}"),
    kazoo.NodeExistsError: (AlreadyExists, "there is a node {path} already"),
    kazoo.BadVersionError: (Conflict, "{path} is at another version"),
    kazoo.NotEmptyError: (Conflict, "{path} has children"),
    kazoo.NoChildrenForEphemeralsError: (Conflict, "an ephemeral node has no children: {path}"),
    kazoo.NoAuthError: (AuthError, "no permission for {path}"),
    kazoo.AuthFailedError: (AuthError, "ZooKeeper at {hosts} refused the credentials"),
    kazoo.SessionClosedRequireSaslError: (AuthError, "ZooKeeper at {hosts} wants SASL"),
    kazoo.InvalidACLError: (
        AuthError,
        "ZooKeeper at {hosts} does not know who we are, so {path} would be nobody's: it asks for "
        "no certificates, or knows no such user; give zk_auth (or unsafe_open_nodes=True, and "
        "everybody may read and change everything)",
    ),
    kazoo.BadArgumentsError: (ConfigError, "ZooKeeper takes no path {path!r}"),
    kazoo.QuotaExceededError: (TooLarge, "the quota above {path} is used up"),
    kazoo.UnimplementedError: (Unsupported, "ZooKeeper at {hosts} is too old"),
}
# Never executed, and another try may help.
_NOT_NOW: dict[type[Exception], str] = {
    kazoo.ConnectionClosedError: "the connection to ZooKeeper at {hosts} is closed",
    kazoo.SessionExpiredError: "the session at ZooKeeper at {hosts} has expired",
    kazoo.SessionMovedError: "the session has moved to another server than {hosts}",
    kazoo.NotReadOnlyCallError: "ZooKeeper at {hosts} has no quorum and takes no writes",
    kazoo.ThrottledOpError: "ZooKeeper at {hosts} has too much to do",
}
# Sent, perhaps executed; nobody knows.
_NO_ANSWER: dict[type[Exception], str] = {
    kazoo.ConnectionLoss: "the connection to ZooKeeper at {hosts} was lost",
    kazoo.OperationTimeoutError: "ZooKeeper at {hosts} gave up on its time limit",
    kazoo.RequestTimeoutError: "ZooKeeper at {hosts} gave up on its time limit",
    kazoo.NewConfigNoQuorumError: "ZooKeeper at {hosts} lost its quorum",
}
# In the answer to a transaction: this operation failed only because another one did.
_BYSTANDERS = (kazoo.RolledBackError, kazoo.RuntimeInconsistency)


def translated(error: BaseException, *, hosts: str, path: str, writes: bool) -> DlogError:
    """`writes`: the call would change the node at `path`."""
    kind = type(error)
    if kind in _REFUSED:
        leaf, text = _REFUSED[kind]
        return leaf(text.format(path=path, hosts=hosts), path=path)
    if kind in _NOT_NOW:
        return Unavailable(_NOT_NOW[kind].format(hosts=hosts), path=path, missing=[hosts])
    outcome = Outcome.UNKNOWN if writes else Outcome.NOT_HAPPENED
    if kind in _NO_ANSWER:
        told = _NO_ANSWER[kind].format(hosts=hosts)
        return Unavailable(told, outcome=outcome, path=path, missing=[hosts])
    return Broken(f"ZooKeeper at {hosts} answered {error!r} for {path}", path=path)


def connection_is_lost(error: BaseException | None) -> bool:
    return isinstance(error, kazoo.ConnectionLoss)


def root_is_written(error: BaseException) -> bool:
    """The first half of a transaction found another root than was looked at."""
    return isinstance(error, kazoo.BadVersionError | kazoo.NoNodeError)


def culprit(answers: list[object]) -> tuple[int, Exception] | None:
    """Which operation of a transaction was refused, and why; None when all were applied."""
    for index, answer in enumerate(answers):
        if isinstance(answer, Exception) and not isinstance(answer, _BYSTANDERS):
            return index, answer
    return None
