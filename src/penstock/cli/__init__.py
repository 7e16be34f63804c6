"""The command line: starts the edges and speaks for the terminal."""

from penstock.cli.app import main

__all__ = ["main"]
