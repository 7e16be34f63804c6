"""Messages from outside: signals and requests, from the caller to the row."""
