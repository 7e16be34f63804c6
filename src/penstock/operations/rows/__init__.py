"""What judges rows and runs them: an operation's code, its limits, and what an attempt leads to."""
