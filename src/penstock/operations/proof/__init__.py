"""Proving that the records are true, and finding what is wrong with a deployment."""
