"""The rules of running rows: pure functions, no clock, no database."""
