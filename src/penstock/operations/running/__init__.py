"""One chunk at work: planned, run, written."""
