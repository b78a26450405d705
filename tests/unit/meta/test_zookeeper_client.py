"""The socket that kazoo is given: under TLS, or none at all."""

from __future__ import annotations

import gc
import shutil
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import ConnectionDropped

from dlog.meta.zookeeper_client import _Credentials, _Handler
from dlog.secret import Secret
from dlog.testing.cluster.authority import Authority
from dlog.tls import TlsContexts, TlsOptions


def connected_to_nobody(*, is_noticed: bool) -> socket.socket:
    """Its peer reset it; with `is_noticed` somebody heard of that before."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        end = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
    if is_noticed:
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    return end


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on PATH")
@pytest.mark.parametrize("is_noticed", [False, True])
def test_a_socket_that_was_reset_before_its_handshake_is_closed_and_not_given_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_noticed: bool
) -> None:
    """What goes over it then would go in the clear, if it went."""
    end = connected_to_nobody(is_noticed=is_noticed)

    def create_connection(*_: Any) -> socket.socket:
        return end

    monkeypatch.setattr(socket, "create_connection", create_connection)
    handler = _Handler(TlsContexts(TlsOptions(ca_file=Authority(tmp_path).ca_file)), None)
    with pytest.raises(ConnectionResetError):
        handler.create_connection(address=("127.0.0.1", 1), hostname="127.0.0.1", timeout=1.0)
    gc.collect()  # a socket that is left open would say so, which is an error


def test_credentials_are_asked_for_at_each_connection_and_missed_before_it() -> None:
    said = ["ana:one", "ana:two"]
    auth = Secret(lambda: said[0])
    handler = _Handler(None, auth)
    credentials = _Credentials(auth, handler)
    for value in list(said):
        assert list(credentials) == [("digest", value)]
        said.pop(0)
    said.append("nobody")
    with pytest.raises(ConnectionDropped):
        list(credentials)
    handler.trouble = ""
    with pytest.raises(OSError, match="no credentials"):
        handler.create_connection(address=("127.0.0.1", 1), hostname="127.0.0.1", timeout=1.0)
    assert handler.trouble == "credentials for ZooKeeper are user:password"
