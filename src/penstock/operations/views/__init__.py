"""Reading operations, rows and errors; nothing is changed."""
