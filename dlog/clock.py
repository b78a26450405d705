"""Time as an argument. Only this module reads the real clocks; safety never depends on what they
say."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    def wall_us(self) -> int:
        """Microseconds since 1970, for stamps that people read. May jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back, for deadlines and ages."""
        ...


class SystemClock:
    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def since_boot_s(self) -> float:
        """As `monotonic_s`, and it goes on while the machine is suspended, where the system can
        tell."""
        try:
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        except (AttributeError, OSError):  # other systems than Linux
            return time.monotonic()


def ageing_s(clock: Clock) -> float:
    """For what others may do while we are suspended: seconds that never go back, and that do not
    stop with us."""
    return clock.since_boot_s() if isinstance(clock, SystemClock) else clock.monotonic_s()


SYSTEM_CLOCK = SystemClock()

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def datetime_us(moment: datetime) -> int:
    """Microseconds since 1970 of an aware datetime, exactly."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def us_datetime(wall_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=wall_us)
