"""The fault harness: real workers and clients that are killed, frozen and cut off, and an oracle that misses nothing.

`python -m tests.torture --help`; what it does and how to read a finding is in docs/reference/torture.md.
"""
