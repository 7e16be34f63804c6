"""Chunks of rows: the ledger, the records of steps, the chunk as its owner has it, and its SQL. Knows no pipeline."""
