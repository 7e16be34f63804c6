"""High throughput against throttled remotes, with an outcome for every record; needs no database of ours."""
