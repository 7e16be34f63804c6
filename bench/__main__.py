"""`make bench`: measure everything side by side and print tables with what was to be reached.

`python -m bench main peers --quick` measures some sections at a glance; `--full` takes an hour. Figures are comparable
within one run only: machines are noisy.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Section
from bench.lab import Lab
from bench.machine import look
from bench.places import DATABASES, Places
from bench.report import PAGE, write_numbers, write_page
from bench.sections import SECTIONS
from bench.show import text
from bench.sizes import DEFAULT, FULL, QUICK, Sizes

NUMBERS = Path("build/bench.json")


def main() -> None:
    """Measure, show, and keep the numbers. Exits with 1 if a section could not be measured."""
    arguments = _arguments()
    sizes = _sizes(arguments)
    databases = tuple(name for name in DATABASES if name in (arguments.db or DATABASES))
    wanted = arguments.sections or [name for name in SECTIONS if name != "peers" or "postgresql" in databases]
    began = time.monotonic()
    with Places() as places:
        machine = look(places, databases)
        print(machine)
        lab = Lab(places, sizes, databases, say=lambda word: print(f"  {word}", file=sys.stderr, flush=True))
        sections, failures = _measure(lab, wanted)
    write_numbers(arguments.out, sections, machine, sizes)
    print(f"\nnumbers in {arguments.out}, after {(time.monotonic() - began) / 60:.0f} minutes")
    if arguments.write_docs:
        write_page(sections, machine, sizes, arguments.write_docs)
    if failures:
        sys.exit(f"not measured: {', '.join(failures)}")


def _measure(lab: Lab, wanted: Sequence[str]) -> tuple[list[Section], list[str]]:
    """Section by section; one that fails does not spoil the others."""
    sections, failures = [], []
    for name in wanted:
        print(f"{name}:", file=sys.stderr, flush=True)
        try:
            section = SECTIONS[name](lab)
        except Exception as error:
            failures.append(name)
            print(f"{name} could not be measured: {error}", file=sys.stderr)
        else:
            sections.append(section)
            print(text(section), flush=True)
    return sections, failures


def _sizes(arguments: argparse.Namespace) -> Sizes:
    sizes = QUICK if arguments.quick else FULL if arguments.full else DEFAULT
    if arguments.rows:
        sizes = sizes.scaled(arguments.rows)
    return sizes.repeated(arguments.repeat) if arguments.repeat else sizes


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"of: {', '.join(SECTIONS)}; all if none is named"
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a tenth of the rows, once")
    size.add_argument("--full", action="store_true", help="up to ten million rows, five times")
    parser.add_argument("--rows", type=int, help="rows of the main job; everything else in proportion")
    parser.add_argument("--repeat", type=int, help="how often everything is measured")
    parser.add_argument("--db", action="append", choices=DATABASES, help="only on this database; may be repeated")
    parser.add_argument("--out", type=Path, default=NUMBERS, help="where the numbers go")
    parser.add_argument(
        "--write-docs", type=Path, nargs="?", const=PAGE, metavar="PAGE", help="also put tables and chart into the page"
    )
    found = parser.parse_args()
    unknown = [name for name in found.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {', '.join(unknown)}; there are: {', '.join(SECTIONS)}")
    return found


if __name__ == "__main__":
    main()
