"""State graphs as documents: flags, durations, conditions, and the check that finds every fault at once."""
