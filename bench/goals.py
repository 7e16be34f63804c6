"""What we want to reach on a machine with two cores."""

from __future__ import annotations

from bench.figures import Goal

__all__ = [
    "ASLEEP",
    "BULK",
    "DISK",
    "FLAT",
    "HELP",
    "MEMORY",
    "ONE_PROCESS",
    "PAGE",
    "PERMITTED",
    "QUEUE",
    "REFUSED",
    "SCRIPT",
    "SIGNALS",
    "SIGNAL_LATENCY",
    "STREAM",
    "STREAM_IDS",
    "TRIGGER",
    "TRIGGER_MANY",
    "TWO_WORKERS",
    "UPSERT",
]

ONE_PROCESS = Goal("one process: at least 0.40 of the floor", 0.40)
TWO_WORKERS = Goal("two workers: at least 0.70 of the floor", 0.70)
SCRIPT = {
    "sqlite": Goal("at least 3 times a hand-written script on SQLite", 3),
    "postgresql": Goal("at least 8 times a hand-written script on PostgreSQL", 8),
}
QUEUE = Goal("at least 50 times the fastest queue with a task per row", 50)
FLAT = Goal("no slower with the most rows than with the second size (0.9 and more is flat)", 0.9)
MEMORY = Goal("less than 150 MB of memory at any size", 150, is_minimum=False)
DISK = Goal("at most 60 bytes of database for a plain row", 60, is_minimum=False)
ASLEEP = Goal("steps that sleep 10 ms, 100 at once: at least 0.9 of the ideal", 0.9)
SIGNALS = Goal("at least 2,000 signals a second accepted, sent from one core", 2000)
SIGNAL_LATENCY = Goal("signal to next step in another process: less than 250 ms for 99 %", 250, is_minimum=False)
TRIGGER = Goal("a trigger: at least 0.8 of a transaction written by hand", 0.8)
TRIGGER_MANY = Goal("trigger_many: at least 20 times as fast as one by one", 20)
PAGE = Goal("pages of a large operation: less than 20 ms for 99 %", 20, is_minimum=False)
HELP = Goal("`penstock --help` in less than 0.4 s", 0.4, is_minimum=False)
PERMITTED = Goal("at least 0.95 of the rate that a remote permits", 0.95)
REFUSED = Goal("less than one call in a hundred refused", 0.01, is_minimum=False)
STREAM = Goal("a stream of records to a remote: at most 2 bytes of memory for each", 2, is_minimum=False)
STREAM_IDS = Goal("and at most 24 when ids are kept", 24, is_minimum=False)
BULK = Goal("bulk actions at least twice as fast as batch requests", 2)
UPSERT = Goal("upserts into a table: at least 0.9 of the best way by hand", 0.9)
