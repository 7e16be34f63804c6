"""Running the rows of a chunk."""
