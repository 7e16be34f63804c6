"""The process `penstock`, also as `python -m penstock`."""

import gc
import io
import sys

from penstock.cli import main

__all__ = ["command"]


def command() -> int:
    """Run the command that this process was started for; gives its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")  # what was done is told, also where characters of it are lacking
    try:
        return main()
    finally:
        gc.freeze()  # a last look for garbage among all that was imported takes a third of a second


if __name__ == "__main__":
    sys.exit(command())
