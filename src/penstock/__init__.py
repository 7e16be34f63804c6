"""Durable bulk operations for Python."""
