"""Which password and which digest a ledger may have: of new ones, and of those that are opened.

BookKeeper wants the password of a ledger in its metadata, where everybody who may read that node
reads it. So it keeps out those who reach bookies only, and chance; who may read the metadata store
may write every ledger. A password given to the store must be the ledger's. With none given, every
new ledger gets one of its own that nobody could guess, and what stands in the metadata opens it.
An empty password is as good as published: the key of it is the same for all the world.

The digest is named by the same metadata. Whoever may change that node could name one that needs no
key, or none at all, and put entries of their own under it; so who knows what a ledger was made with
says so (a log its list, a user the option `digest`), and another one is refused, not followed.
"""

from __future__ import annotations

import hmac

from dlog.chance import new_password
from dlog.errors import AuthError, ConfigError, Unsupported
from dlog.ledger.bookkeeper.info import DIGESTS, digest_of, name_of
from dlog.ledger.bookkeeper.ledger_nodes import StoredLedger
from dlog.ledger.store import LedgerSpec, check_digest
from dlog.secret import Provider, Secret
from dlog.wire.bookie_digest import DigestType, EntryDigest


class Passwords:
    def __init__(
        self,
        given: Secret | bytes | str | Provider | None,
        *,
        digest: str | None = None,
        unsafe_empty: bool = False,
        unsafe_no_digest: bool = False,
    ) -> None:
        self._given = None if given is None else Secret.of(given)
        if digest is not None and digest not in DIGESTS:
            raise ConfigError(f"a digest is one of {', '.join(DIGESTS)}, not {digest!r}")
        self._digest = digest
        self._unsafe_empty = unsafe_empty
        self._unsafe_no_digest = unsafe_no_digest
        if isinstance(given, bytes) and not given:
            self.of_new()  # said at once what any ledger would meet

    @property
    def is_given(self) -> bool:
        return self._given is not None

    def of_new(self) -> bytes:
        if self._given is None:
            return new_password()
        password = self._given.reveal()
        if not password and not self._unsafe_empty:
            raise ConfigError(
                "an empty password keeps nobody out: give one, or none at all, which makes one for "
                "each ledger (unsafe_empty_password=True takes it)"
            )
        return password

    def check_new(self, spec: LedgerSpec) -> None:
        found = digest_of(spec)
        if self._digest is not None and spec.digest != self._digest:
            raise AuthError(
                f"only ledgers with the digest {self._digest} are made here, and the log says "
                f"{spec.digest}: somebody changed it, or it is another one"
            )
        if found is DigestType.DUMMY and not self._unsafe_no_digest:
            raise ConfigError(
                "with the digest 'dummy' nothing would tell damaged entries from whole ones "
                "(unsafe_no_digest=True makes such ledgers)"
            )

    def digest_of(self, stored: StoredLedger, pinned: str | None = None) -> EntryDigest:
        """How the entries of a ledger are checked, if its password is ours and its digest the one
        that it was made with."""
        metadata, ledger_id = stored.metadata, stored.ledger_id
        # No name for the password in this frame: a traceback may print what each frame held.
        digest_type = metadata.digest_type
        if digest_type is None or metadata.password is None:
            raise Unsupported(
                f"ledger {ledger_id} is older than digests in metadata: nothing says how its "
                "entries are checked",
                ledger_id=ledger_id,
            )
        for known in (pinned, self._digest):
            check_digest(ledger_id, name_of(digest_type), known)
        if digest_type is DigestType.DUMMY and not self._unsafe_no_digest:
            raise AuthError(
                f"nothing checks the entries of ledger {ledger_id}: it has the digest 'dummy' "
                "(unsafe_no_digest=True reads it)",
                ledger_id=ledger_id,
            )
        if self._given is not None:
            if not hmac.compare_digest(metadata.password, self.of_new()):
                raise AuthError(f"ledger {ledger_id} has another password", ledger_id=ledger_id)
        elif not metadata.password and not self._unsafe_empty:
            raise AuthError(
                f"ledger {ledger_id} has an empty password, which keeps nobody out "
                "(unsafe_empty_password=True opens it)",
                ledger_id=ledger_id,
            )
        return EntryDigest(digest_type, metadata.password)
