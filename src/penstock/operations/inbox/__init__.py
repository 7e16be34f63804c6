"""Signals and requests: storing them, matching them to rows, and applying them."""
