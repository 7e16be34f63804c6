"""What the tests of targets share."""

from __future__ import annotations

from sql_places import place

__all__ = ["place"]
