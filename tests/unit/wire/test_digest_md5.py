"""DIGEST-MD5 against the example of its RFC, and against challenges that are none."""

from __future__ import annotations

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import AuthError, DlogError, FormatError
from dlog.wire.digest_md5 import CHALLENGE_BYTES_MAX, DigestMd5Dialogue

# RFC 2831, section 4, the IMAP4 example.
CHALLENGE = (
    b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,'
    b"charset=utf-8"
)
RESPONSE, PROOF = b"d388dad90d4bbd760a152321f2143af7", b"ea40f60335c427b5527b84dbabcdfffd"


def dialogue(user: str = "chris", password: str = "secret") -> DigestMd5Dialogue:
    return DigestMd5Dialogue(
        user, password, uri="imap/elwood.innosoft.com", client_nonce="OA6MHXh6VqTrRk"
    )


def test_the_example_of_the_rfc() -> None:
    ours = dialogue()
    answer = ours.respond(CHALLENGE, "b1")
    assert b"response=" + RESPONSE in answer
    assert b"secret" not in answer
    ours.verify(b"rspauth=" + PROOF, "b1")


@pytest.mark.parametrize("proof", [b"", b"rspauth=" + RESPONSE, b"rspauth=", b"stale=true"])
def test_another_proof_is_none(proof: bytes) -> None:
    ours = dialogue()
    ours.respond(CHALLENGE, "b1")
    with pytest.raises((AuthError, FormatError)):
        ours.verify(proof, "b1")


def test_proofs_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(theirs: bytes, ours: bytes) -> bool:
        compared.append((theirs, ours))
        return True

    monkeypatch.setattr(hmac, "compare_digest", compare)
    ours = dialogue()
    ours.respond(CHALLENGE, "b1")
    ours.verify(b"rspauth=" + RESPONSE, "b1")
    assert compared == [(RESPONSE, PROOF)]


def test_a_proof_before_the_challenge_is_none() -> None:
    with pytest.raises(AuthError):
        dialogue().verify(b"rspauth=" + PROOF, "b1")


def test_names_are_quoted_and_hashed_as_latin_1_where_they_can_be() -> None:
    odd = dialogue('a"b\\c', "pässwörd").respond(CHALLENGE, "b1")
    assert b'username="a\\"b\\\\c"' in odd
    assert dialogue("üser", "x").respond(CHALLENGE, "b1").count("ü".encode()) == 1
    assert "Ж".encode() in dialogue("Ж", "Ж").respond(CHALLENGE, "b1")


@pytest.mark.parametrize(
    ("challenge", "error"),
    [
        (b"", FormatError),
        (b'nonce="n"', FormatError),  # no algorithm
        (b"algorithm=md5-sess", FormatError),  # no nonce
        (b'nonce="n",nonce="m",algorithm=md5-sess', FormatError),
        (b'nonce="n",algorithm=md5', FormatError),
        (b'nonce="n",algorithm=md5-sess,qop="auth-conf"', AuthError),
        (b'nonce="n" algorithm', FormatError),
        (b'nonce="n', FormatError),
        (b"\xff\xfe", FormatError),
        (bytes(CHALLENGE_BYTES_MAX + 1), FormatError),
    ],
)
def test_what_is_no_challenge(challenge: bytes, error: type[DlogError]) -> None:
    with pytest.raises(error):
        dialogue().respond(challenge, "b1")


@given(st.binary(max_size=300) | st.text(alphabet='nonce=",\\ realmqoputh', max_size=80))
def test_any_bytes_are_answered_or_refused(raw: bytes | str) -> None:
    challenge = raw if isinstance(raw, bytes) else raw.encode()
    ours = dialogue()
    try:
        ours.respond(challenge, "b1")
    except DlogError:
        pass
    with pytest.raises(DlogError):
        ours.verify(challenge, "b1")
