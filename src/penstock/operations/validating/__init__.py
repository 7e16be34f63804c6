"""From a file to validated rows in chunks."""
