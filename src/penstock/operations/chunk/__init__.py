"""Chunks of rows: the ledger, step records, the owned chunk, and its SQL. Knows no pipeline."""
