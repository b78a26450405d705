"""Whose nodes are: their creator's where there is one, and never the world's then."""

from __future__ import annotations

import traceback

import pytest
from kazoo.security import (
    CREATOR_ALL_ACL,
    OPEN_ACL_UNSAFE,
    Permissions,
    make_digest_acl_credential,
)

from dlog import limits
from dlog.errors import ConfigError
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.meta.zookeeper_acl import acl_of

ANA = make_digest_acl_credential("ana", "of ana")
CANARY = "canary-2c60"


def owned(others: str | None = None) -> list[tuple[int, str, str]]:
    made = acl_of(has_credentials=True, others=others, unsafe_open=False)
    assert made[0] == CREATOR_ALL_ACL[0], "the creator's in any case"
    return [(acl.perms, acl.id.scheme, acl.id.id) for acl in made[1:]]


def test_nodes_of_who_comes_with_credentials_are_its_own() -> None:
    assert owned() == []
    nobodys = acl_of(has_credentials=False, others=None, unsafe_open=False)
    assert nobodys == acl_of(has_credentials=True, others=None, unsafe_open=True) == OPEN_ACL_UNSAFE


def test_others_are_let_in_by_name() -> None:
    read = Permissions.READ
    assert owned(f"digest:{ANA}:r") == [(read, "digest", ANA)]
    assert owned("x509:CN=a,O=b:wr") == [(read | Permissions.WRITE, "x509", "CN=a,O=b")]
    assert owned(f"sasl:zk/host@REALM:cdrwa,digest:{ANA}:r") == [
        (Permissions.ALL, "sasl", "zk/host@REALM"),
        (read, "digest", ANA),
    ]


@pytest.mark.parametrize(
    "others",
    [
        "world:anyone:r",
        f"digest:{ANA}:r,world:anyone:cdrwa",
        f"digest:ana:{CANARY}:r",  # a password where its hash belongs
        f"digest:{CANARY}:r",
        "auth::r",  # the creator, who has everything
        "digest::r",
        "x509:CN=a:",
        "x509:CN=a:rx",
        "x509:CN=a:rr",
        "x509:CN=a:r,",
        ",",
        CANARY,
        f"ana {CANARY}:r",
        ",".join([f"digest:{ANA}:r"] * (limits.ZOOKEEPER_ACL_MAX + 1)),
    ],
)
def test_what_is_no_list_of_others(others: str) -> None:
    with pytest.raises(ConfigError) as caught:
        owned(others)
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_what_nobody_owns_has_no_list() -> None:
    for credentials, unsafe_open in ((False, False), (True, True)):
        with pytest.raises(ConfigError, match="nodes that are owned"):
            acl_of(has_credentials=credentials, others="x509:CN=a:r", unsafe_open=unsafe_open)
    with pytest.raises(ConfigError, match="nodes that are owned"):
        ZooKeeperMetaStore("zk:2181", acl="x509:CN=a:r")
