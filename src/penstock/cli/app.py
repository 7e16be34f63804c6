"""The command `penstock`: what there is to call, and what becomes of errors.

Modules of commands import what is heavy inside their commands, so that `penstock --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from penstock.cli import config, db, deliveries, doctor, lifecycle, machines, ops, run, verify, waits, worker
from penstock.cli.problems import INTERRUPTED, exit_code, report, report_usage
from penstock.errors import PenstockError

__all__ = ["app", "main"]

app = typer.Typer(
    name="penstock",
    help="Durable bulk operations: every row validated, driven through its steps, and answered with a verdict.",
    epilog="Example: penstock run price-update prices.csv --app shop.py --meta currency=EUR",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
run.add_to(app)
worker.add_to(app)
ops.add_to(app)
waits.add_to(app)
lifecycle.add_to(app)
deliveries.add_to(app)
machines.add_to(app)
verify.add_to(app)
doctor.add_to(app)
db.add_to(app)
config.add_to(app)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Options stand after the subcommand."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and say with which code the process should exit; a bug still shows its traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    try:
        return app(given, prog_name="penstock", standalone_mode=False) or 0
    except PenstockError as error:
        report(error, as_json=as_json)
        return exit_code(error)
    except typer.TyperException as error:
        report_usage(error, as_json=as_json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
