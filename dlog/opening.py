"""What opening a handle returns: `await` it for the handle, or use it in `async with`."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Any, Generic, TypeVar

_H = TypeVar("_H")


class Opening(Generic[_H]):
    """What opening returns: `await` it for the handle, or use it in `async with`."""

    def __init__(self, opening: Any) -> None:
        self._opening = opening
        self._handle: Any = None

    def __await__(self) -> Generator[Any, None, _H]:
        return self._opening.__await__()  # type: ignore[no-any-return]

    async def __aenter__(self) -> _H:
        self._handle = await self._opening
        await self._handle.__aenter__()
        return self._handle  # type: ignore[no-any-return]

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._handle.__aexit__(kind, error, trace)
