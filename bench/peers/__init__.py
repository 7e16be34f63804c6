"""Those whom people would use instead, doing the same job. They run in an environment of their own."""
