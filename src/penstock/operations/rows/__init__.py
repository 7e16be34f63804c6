"""Judging and running rows: an operation's runtime, its limits, and what an attempt leads to."""
