"""Bulk calls that are made of several: records that refer to each other, and tables without bulk calls."""
