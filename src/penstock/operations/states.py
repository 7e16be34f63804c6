"""What may happen to an operation and to one step of one row."""

from __future__ import annotations

from penstock.machine import Machine

__all__ = ["NOTES", "OPERATION", "ROW_STEP"]

# fmt: off
OPERATION = Machine.of(
    "operation",
    # from                  event                   to
    ("Pending",             "picked_up",            "Validating"),
    ("Pending",             "cancelled",            "Cancelled"),
    ("Validating",          "validated",            "Running"),
    ("Validating",          "rejected",             "Failed"),        # unreadable file, error threshold; nothing ran
    ("Validating",          "cancel_requested",     "Stopping"),
    ("Validating",          "broke",                "Stopping"),
    ("Validating",          "paused",               "Paused"),
    ("Running",             "finished",             "Completed"),
    ("Running",             "finished_with_errors", "CompletedWithErrors"),
    ("Running",             "cancel_requested",     "Stopping"),
    ("Running",             "broke",                "Stopping"),      # threshold, source or row data lost
    ("Running",             "paused",               "Paused"),
    ("Paused",              "resumed",              "Running"),
    ("Paused",              "reading_resumed",      "Validating"),
    ("Paused",              "finished",             "Completed"),     # its last row ended by itself
    ("Paused",              "finished_with_errors", "CompletedWithErrors"),
    ("Paused",              "cancel_requested",     "Stopping"),
    ("Paused",              "broke",                "Stopping"),
    ("Stopping",            "cancelled",            "Cancelled"),     # with the last chunk: every row has its verdict
    ("Stopping",            "failed",               "Failed"),
    ("CompletedWithErrors", "retry_requested",      "Retrying"),
    ("Failed",              "retry_requested",      "Retrying"),
    ("Cancelled",           "retry_requested",      "Retrying"),
    ("Retrying",            "resumed",              "Running"),       # by the first claim
    ("Retrying",            "cancel_requested",     "Stopping"),
    ("Retrying",            "broke",                "Stopping"),
    ("Retrying",            "paused",               "Paused"),
    settled=("Completed", "CompletedWithErrors", "Failed", "Cancelled"),
)

# What is logged of an operation beside its moves: its state stays as it is.
NOTES = frozenset({"migrated", "held", "released"})

ROW_STEP = Machine.of(
    "row step",
    # from                   event             to
    ("Pending",              "started",        "Running"),
    ("Pending",              "skipped",        "Skipped"),            # a `when` condition said no
    ("Pending",              "cancelled",      "Cancelled"),
    ("Running",              "succeeded",      "Completed"),
    ("Running",              "failed",         "Failed"),
    ("Running",              "timed_out",      "TimedOut"),
    ("Running",              "parked",         "WaitingForCompletion"),
    ("Running",              "postponed",      "Pending"),            # in-step retry; due_at says when
    ("Running",              "owner_lost",     "Pending"),            # counted as lost
    ("Running",              "interrupted",    "Pending"),            # graceful stop; not counted
    ("Running",              "left_in_doubt",  "Failed"),             # an at-most-once step was cut off
    ("Running",              "poisoned",       "Failed"),             # lost twice while alone
    ("Running",              "cancelled",      "Cancelled"),
    ("WaitingForCompletion", "signalled",      "Completed"),
    ("WaitingForCompletion", "poll_succeeded", "Completed"),
    ("WaitingForCompletion", "signal_failed",  "Failed"),
    ("WaitingForCompletion", "poll_failed",    "Failed"),
    ("WaitingForCompletion", "timed_out",      "TimedOut"),
    ("WaitingForCompletion", "poisoned",       "Failed"),
    ("WaitingForCompletion", "cancelled",      "Cancelled"),
    ("Failed",               "reset",          "Pending"),            # operation retry: generation + 1
    ("TimedOut",             "reset",          "Pending"),
    ("Cancelled",            "reset",          "Pending"),
    settled=("Completed", "Failed", "TimedOut", "Cancelled", "Skipped"),
)
# fmt: on
