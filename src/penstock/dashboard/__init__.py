"""The dashboard: pages on which operators upload, watch, understand, fix and approve.

Everything works without a script; a script only makes the pages live.
"""
