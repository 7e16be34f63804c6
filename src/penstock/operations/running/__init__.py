"""One chunk at work: claimed, planned, run, written."""
