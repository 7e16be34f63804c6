"""How fast a source may begin calls: free at first, so many in a window once throttles come so often that they cost."""

from __future__ import annotations

import math
from collections import deque

from penstock.targets.model import Limit

__all__ = ["Pace"]

CALLS_MIN = 5
"""Fewer calls than this between throttles say nothing about a rate."""
COSTLY = 0.05
CYCLE_MAX_S = 60.0
"""Throttles that take less than this share of the time, or are further apart, are waited out: a pace gains nothing."""
GROWTH = 1.002
"""By how much the pace grows in its first span without a throttle; each further span twice as often."""
DOUBLINGS_MAX = 12.0
"""How often that, or a guessed pace itself, is doubled; a guessed pace that nobody minded so long is dropped."""
SPAN_WINDOWS = 2.0
HELD_SPANS = 6.0
"""The windows in the first spans, and how many spans a pace that was just learned is kept. To be refused costs more
than a little less than is permitted."""
EVENLY = 50
"""Calls take time as they like: where time is counted they are spread over so many parts of the window."""
STEP_BACK = 0.02
"""By how much a pace that was refused is lowered; twice as much each time it is refused again soon."""
STEP_BACK_MAX = 0.5
STRIKES_MAX = 3
"""A pace that was refused more often in a row is learned anew: the remote counts otherwise than it did."""
FULL = 0.8
"""So much of the fullest window may still be a full one; what is less began while earlier calls filled a part of it."""
MARGIN = 1.01
"""How much longer than the window of the remote ours is: calls do not take equally long to get there."""
EARLY_S = 0.01
"""A window may seem shorter by this: the call that filled it took longer to get there than the one that began it."""
PATIENCE = 50
PATIENCE_MAX = 200
"""A pace that was refused is tried again after so many times the wait that it cost; twice as long each time."""
SPAN_MAX_S = 600.0
FREE = 10.0
"""A pace that has grown so many times over holds nobody back and is dropped."""
NO_WINDOW = (0, 0.0)
NOW_S = 0.001
"""What is due so soon is due now: no timer is finer."""


class Pace:
    """The pace of one source, on a monotonic clock: so many calls in any window of so many seconds.

    It begins with what the remote let through from one throttle to the next, in the time until it takes calls again;
    so it never makes a source slower than the throttles did. Calls come as fast as they can until the window is full,
    as the remote counts them. The pace is kept for a while and grows until the remote refuses it; from then on it stays
    a little below that. After a long while it tries to grow again, slowly at first and, if nobody minds, faster and
    faster. One that is refused again and again is learned anew.

    A remote that does not say when it takes calls again has shown no window, and what it let through in our own wait
    may be far too little. Then calls are spread evenly, and the pace is doubled in every such wait until it is refused.
    """

    def __init__(self) -> None:
        self._base: float | None = None
        self._top: float | None = None
        self._is_guess = False
        self._window_calls = 0
        self._starts: deque[float] = deque()
        self._grows_from_s = 0.0
        self._span_s = 1.0
        self._strikes = 0
        self._patience = PATIENCE
        self._cycle_from_s: float | None = None
        self._first_call_s: float | None = None
        self._last_call_s = 0.0
        self._calls = 0
        self._waits_s = 0.0
        self._resumes_s = 0.0
        self._is_share_new = False
        self._let_through = 0
        self._fullest = NO_WINDOW

    def per_second(self, now_s: float) -> float | None:
        """Calls a second at the moment; None while anything goes."""
        if self._base is None:
            return None
        spans = max(0.0, now_s - self._grows_from_s) / self._span_s
        if self._is_guess and self._top is None:
            return self._base * 2.0**spans if spans <= DOUBLINGS_MAX else None
        if self._top is not None and spans < 1:
            return self._base + (self._top - self._base) * spans
        grown: float = GROWTH ** (2.0 ** min(spans if self._top is None else spans - 1, DOUBLINGS_MAX) - 1)
        return (self._top or self._base) * grown if grown <= FREE else None

    def until_s(self, now_s: float) -> float | None:
        """When the next call may begin; None when it may now."""
        rate = self.per_second(now_s)
        if rate is None or len(self._starts) < self._window_calls:
            return None
        due_s = self._starts[0] + self._window_calls / rate
        return due_s if due_s - now_s > NOW_S else None

    def began(self, now_s: float) -> None:
        """A call begins."""
        if self._cycle_from_s is None:
            self._cycle_from_s = now_s
        if self._first_call_s is None:
            self._first_call_s = now_s
        self._last_call_s = now_s
        self._calls += 1
        if self._base is not None:
            self._starts.append(now_s)

    def scale(self, factor: float) -> None:
        """Our part of the quota is so many times what it was: so are the pace, and what a window took of it."""
        if factor == 1:
            return
        calls, window_s = self._fullest
        self._fullest, self._is_share_new = (round(calls * factor), window_s), True
        if self._base is not None:
            self._base *= factor
            self._top = None if self._top is None else self._top * factor
            self._hold(max(1, round(self._window_calls * factor)))

    def refused(self) -> None:
        """A call that began was throttled: it does not count as let through."""
        if self._starts:
            self._starts.pop()
        if self._first_call_s is not None:
            self._calls = max(0, self._calls - 1)
        else:
            self._refused_late()

    def _refused_late(self) -> None:
        """A call that was under way when the throttle began was refused too: the window took fewer than it seemed."""
        calls, window_s = self._fullest
        if calls and calls == self._let_through:
            calls -= 1
            self._fullest = calls, window_s
            is_learned = self._base is not None and self._top is None
            if is_learned and CALLS_MIN <= calls < self._window_calls:
                assert self._base is not None
                self._base *= calls / self._window_calls
                self._hold(calls)
        self._let_through -= 1

    def throttled(self, now_s: float, wait_s: float, limit: Limit | None, *, is_guess: bool = False) -> None:
        """The remote wants to be left alone for a while, which is a guess when it did not say for how long.

        `refused` has been told already.
        """
        if limit is Limit.CONCURRENCY or self._cycle_from_s is None or self._first_call_s is None:
            return  # fewer at once help, which is not a matter of pace
        rate = self.per_second(now_s)
        if rate is not None:
            self._step_back(rate, now_s, wait_s, limit, is_guess)
        else:
            if self._base is not None:  # it was dropped
                self._forget()
            if self._is_share_new:  # others had filled another part of this window
                self._begin_cycle(now_s, wait_s)
                return
            if not self._learn(now_s, wait_s, limit, is_guess):
                return
        self._begin_cycle(now_s, wait_s, self._calls if limit is not Limit.TIME else 0)
        is_held = self._top is None and not self._is_guess
        self._grows_from_s = self._resumes_s + (HELD_SPANS * self._span_s if is_held else 0.0)

    def heard(self, now_s: float, wait_s: float) -> None:
        """Another member of our quota was throttled, for so long from now.

        The remote counts our calls together: a window that we measure begins after the last throttle of anyone.
        """
        if now_s >= self._resumes_s:
            if self.per_second(now_s) is None and (self._is_share_new or self._calls >= CALLS_MIN):
                self._begin_cycle(now_s, wait_s)
        elif now_s + wait_s < self._resumes_s:
            self._lengthened(self._resumes_s - (now_s + wait_s))
            self._resumes_s = now_s + wait_s

    def _begin_cycle(self, now_s: float, wait_s: float, let_through: int = 0) -> None:
        self._is_share_new = False
        self._let_through, self._resumes_s = let_through, now_s + wait_s
        self._cycle_from_s, self._first_call_s, self._calls, self._waits_s = now_s, None, 0, wait_s

    def _lengthened(self, by_s: float) -> None:
        """The remote made our throttle longer, since another's had begun: the window is shorter than it seemed."""
        calls, window_s = self._fullest
        if calls and calls == self._let_through and by_s < window_s:
            self._fullest = calls, _meant(window_s - by_s, self._waits_s)
            if self._base is not None and self._top is None:
                self._base *= window_s / self._fullest[1]

    def _learn(self, now_s: float, wait_s: float, limit: Limit | None, is_guess: bool) -> bool:
        """Begin a pace if throttles cost too much; False when too few calls came through to end the cycle."""
        assert self._cycle_from_s is not None
        assert self._first_call_s is not None
        # The last call began about when the refused one got there; the refusal took its time to come back.
        cycle_s, window_s = now_s - self._cycle_from_s, self._last_call_s - self._first_call_s + wait_s
        is_long = max(cycle_s, window_s) > CYCLE_MAX_S
        if is_long and not (is_guess and 0 < self._calls < CALLS_MIN):
            self._fullest = NO_WINDOW
            return True
        if self._calls < CALLS_MIN and not is_long:
            self._waits_s += wait_s
            return False
        if window_s > 0 and self._calls >= FULL * self._fullest[0]:
            longest_s = self._fullest[1] if self._calls <= self._fullest[0] / FULL else 0.0
            self._fullest = (self._calls, max(longest_s, _meant(window_s, wait_s)))
        calls, window_s = self._fullest
        if self._waits_s >= COSTLY * cycle_s and calls:
            self._is_guess = is_guess
            is_even = is_guess or limit is Limit.TIME
            self._window_calls = max(1, calls // EVENLY) if is_even else calls
            self._base = max(calls / window_s, self._window_calls / CYCLE_MAX_S)
            self._span_s = max(1.0, wait_s if is_guess else SPAN_WINDOWS * window_s)
            self._starts = deque(maxlen=self._window_calls)
        return True

    def _forget(self) -> None:
        """Nothing is known of the window."""
        self._base = self._top = None
        self._fullest = NO_WINDOW
        self._strikes = 0

    def _hold(self, calls: int) -> None:
        """So many calls in a window from now on."""
        self._window_calls = calls
        self._starts = deque(self._starts, maxlen=calls)

    def _step_back(self, rate: float, now_s: float, wait_s: float, limit: Limit | None, is_guess: bool) -> None:
        assert self._cycle_from_s is not None
        cycle_s = now_s - self._cycle_from_s
        lowest = self._window_calls / CYCLE_MAX_S
        through = self._calls / cycle_s if self._calls >= CALLS_MIN and cycle_s > 0 else lowest
        spans = (now_s - self._grows_from_s) / self._span_s
        if self._top is None or spans > 2:  # the remote is new to us, or has changed
            self._strikes, self._patience = 0, PATIENCE
        elif spans < 0.25:
            self._strikes += 1
        else:
            self._strikes, self._patience = 0, min(2 * self._patience, PATIENCE_MAX)
        if self._strikes > STRIKES_MAX and not (is_guess and self._is_guess):
            self._forget()
            self._learn(now_s, wait_s, limit, is_guess)
            if self._base is not None:
                self._base = max(self._base, min(through, rate))
            return
        if self._strikes and FULL * self._window_calls <= self._calls < self._window_calls:
            self._hold(self._calls)
        lowered = rate * (1 - min(STEP_BACK * 2.0**self._strikes, STEP_BACK_MAX))
        self._base = max(lowered, min(through, rate))
        self._top = max(self._base, rate * (1 - STEP_BACK))
        self._span_s = max(1.0, min(self._patience * wait_s, SPAN_MAX_S))


def _meant(window_s: float, wait_s: float) -> float:
    """The window that a remote means: waits in whole seconds are rounded up, and most windows are whole seconds."""
    whole_s = math.floor(window_s + EARLY_S)
    return min(window_s, MARGIN * whole_s) if whole_s and wait_s == round(wait_s) else window_s
