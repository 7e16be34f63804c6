"""Running chunks: claiming, executing, writing, watching, letting go."""
