from __future__ import annotations

import builtins
import sys
from typing import Any

import crcmod.predefined
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.wire import crc32c

REFERENCE = crcmod.predefined.mkCrcFun("crc-32c")
IMPLEMENTATIONS = {
    "fastcrc": crc32c.from_fastcrc(),
    "google-crc32c": crc32c.from_google_crc32c(),
    "crcmod": crc32c.from_crcmod(),
    "chosen": crc32c.crc32c,
}


@pytest.fixture(params=IMPLEMENTATIONS)
def function(request: pytest.FixtureRequest) -> crc32c.Crc32c:
    found = IMPLEMENTATIONS[request.param]
    if found is None:
        pytest.skip(f"{request.param} is not installed")
    return found


def test_check_value(function: crc32c.Crc32c) -> None:
    assert function(b"123456789") == 0xE3069283
    assert function(b"") == 0
    assert function(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert function(b"\xff" * 32) == 0x62A8AB43


@given(data=st.binary(max_size=300), cut=st.integers(0, 300))
def test_every_implementation_agrees_on_every_buffer(data: bytes, cut: int) -> None:
    expected = REFERENCE(data)
    for name, function in IMPLEMENTATIONS.items():
        if function is None:
            continue
        for view in (data, bytearray(data), memoryview(data), memoryview(b"x" + data)[1:]):
            assert function(view) == expected, name
        assert function(data[cut:], function(data[:cut])) == expected, name
        assert function(data, 0) == expected, name


def hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.split(".")[0] in names:
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)


@pytest.mark.parametrize(
    ("hidden", "chosen"),
    [
        ((), "fastcrc"),
        (("fastcrc",), "google-crc32c"),
        (("fastcrc", "google_crc32c"), "crcmod"),
    ],
)
def test_the_fastest_there_is_chosen(
    hidden: tuple[str, ...], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, *hidden)
    name, function = crc32c.choose()
    assert name == chosen
    assert function(b"123456789") == 0xE3069283


def test_googles_python_path_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("google_crc32c")
    monkeypatch.setattr(sys.modules["google_crc32c"], "implementation", "python")
    assert crc32c.from_google_crc32c() is None
