"""The worker: its lease, what it works on, and what it does in the background."""
