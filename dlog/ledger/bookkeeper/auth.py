"""Who we are, to bookies that want to know. The mechanism is named by the user, and nothing else
will do: a bookie that says it wants no authentication, or is satisfied before it has proved itself,
is refused as a liar or a stranger would be.

Stock bookies offer SASL with Kerberos or with DIGEST-MD5; the latter is here. Its names are fixed:
service and host are both `bookkeeper`, whatever the bookie is called.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from dlog.chance import Chance
from dlog.errors import AuthError, ConfigError
from dlog.secret import Secret
from dlog.wire.digest_md5 import DigestMd5Dialogue

SASL_PLUGIN = "sasl"
_URI = "bookkeeper/bookkeeper"


class AuthDialogue(Protocol):
    """Of one connection."""

    def first(self) -> bytes:
        """What we say first."""
        ...

    def answer(self, payload: bytes, where: str) -> bytes | None:
        """To what the bookie said; None when it has proved itself and we have, too."""
        ...


class BookieAuth(Protocol):
    @property
    def plugin(self) -> str: ...

    @property
    def needs_tls(self) -> bool: ...

    def begin(self, chance: Chance) -> AuthDialogue: ...


@dataclass(frozen=True, slots=True)
class DigestMd5:
    """A user and a password that the bookies' JAAS file knows. Stock bookies let in only users
    whose names contain `bookkeeper`, unless they are configured otherwise."""

    user: str
    password: Secret = field(repr=False)
    unsafe_without_tls: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.password, Secret):
            raise ConfigError("the password of a user is a Secret")
        if not isinstance(self.user, str) or not self.user.isprintable() or not self.user:
            raise ConfigError("the name of a user is printable text")

    @classmethod
    def of(cls, both: Secret) -> DigestMd5:
        """Of a secret of the form user:password. The user is who it was now."""
        found = both.reveal_text().partition(":")
        if all(found):
            return cls(found[0], Secret(lambda: both.reveal_text().partition(":")[2]))
        del found  # of a traceback that prints what each frame held
        raise ConfigError("credentials for bookies are user:password")

    @property
    def plugin(self) -> str:
        return SASL_PLUGIN

    @property
    def needs_tls(self) -> bool:
        """Without it, who listens may try passwords on what was heard, and who stands between may
        go on in our name."""
        return not self.unsafe_without_tls

    def begin(self, chance: Chance) -> AuthDialogue:
        return _DigestMd5Dialogue(self, chance.token())


class _DigestMd5Dialogue:
    def __init__(self, who: DigestMd5, client_nonce: str) -> None:
        self._inner = DigestMd5Dialogue(
            who.user, who.password.reveal_text(), uri=_URI, client_nonce=client_nonce
        )
        self._has_responded = False

    def first(self) -> bytes:
        return b""  # the mechanism's server begins

    def answer(self, payload: bytes, where: str) -> bytes | None:
        if self._has_responded:
            self._inner.verify(payload, where)
            return None
        if not payload:
            raise AuthError(
                f"{where} is satisfied before it knows who we are: it is no such bookie"
            )
        self._has_responded = True
        return self._inner.respond(payload, where)
