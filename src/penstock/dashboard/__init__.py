"""The dashboard: pages for people."""
