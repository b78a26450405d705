"""When a worker reads its group and plans, and when it weighs shards. What happens brings a plan
soon; nothing that happens, one now and then, in case nobody told."""

from __future__ import annotations

import math

from dlog.groups.membership import GroupOptions


class Agenda:
    def __init__(self, options: GroupOptions, now_s: float) -> None:
        self.plans = 0
        self._options = options
        self._plan_s = now_s
        self._is_reading = False
        self._is_late = False  # something changed while the group was being read
        self._is_weighing = False
        self._weigh_s = math.inf if options.weigh_s is None else now_s + options.weigh_s

    def due_s(self) -> float:
        plan_s = math.inf if self._is_reading else self._plan_s
        return plan_s if self._is_weighing else min(plan_s, self._weigh_s)

    # --- plans

    def soon(self, now_s: float, delay_s: float = 0.0) -> None:
        """What comes at once, as when many workers begin, is planned for together."""
        if self._is_reading and not delay_s:
            self._is_late = True
        self._plan_s = min(self._plan_s, now_s + max(delay_s, self._options.gather_s))

    def begins_plan(self, now_s: float) -> bool:
        """Whether the group is to be read, now."""
        if self._is_reading or now_s < self._plan_s:
            return False
        self._is_reading, self._is_late = True, False
        self._plan_s = math.inf
        return True

    def read(self) -> None:
        self._is_reading = False

    def not_read(self, now_s: float) -> None:
        self._plan_s = now_s + self._options.retry_s

    def planned(self, now_s: float, *, others: int, is_settled: bool) -> None:
        self.plans += 1
        options = self._options
        if self._is_late:
            self._is_late, self._plan_s = False, now_s + options.gather_s
            return
        # Nobody has to tell us: what was to move should have, soon; else look now and then.
        settled_s = max(options.replan_s, others * options.renew_s / 4)
        self._plan_s = now_s + (settled_s if is_settled else 2 * options.renew_s)

    # --- weights

    def begins_weighing(self, now_s: float, *, is_first: bool) -> bool:
        """The first of the workers does."""
        if self._is_weighing or now_s < self._weigh_s:
            return False
        if is_first:
            self._is_weighing = True
        else:
            self.weighed(now_s)
        return is_first

    def weighed(self, now_s: float) -> None:
        """Or it failed: it has time."""
        assert self._options.weigh_s is not None
        self._is_weighing, self._weigh_s = False, now_s + self._options.weigh_s
