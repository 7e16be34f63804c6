"""Connections, transactions, the differences between databases, and migrations; knows no feature."""

from penstock.db.database import CommitUnknown, Database

__all__ = ["CommitUnknown", "Database"]
