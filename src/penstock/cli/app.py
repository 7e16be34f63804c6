"""The command `penstock`: what there is to call, and what becomes of errors.

Modules of commands import what is heavy inside their commands, so that `penstock --help` answers at once.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Annotated, Any

import typer

from penstock.cli import (
    audit,
    blobs,
    config,
    db,
    deliveries,
    doctor,
    idempotency,
    keys,
    lifecycle,
    load,
    machines,
    ops,
    run,
    serve,
    submit,
    verify,
    waits,
    webhooks,
    worker,
)
from penstock.cli.documents import stdout_for_documents
from penstock.cli.options import Group, help_end
from penstock.cli.problems import EXIT_MEANINGS, INTERRUPTED, exit_code, report, report_usage
from penstock.errors import DiskFull, PenstockError

__all__ = ["app", "main"]

app = typer.Typer(
    name="penstock",
    help="Run files of rows through operations: each row is validated, goes through its steps and gets a result.",
    epilog=help_end("run price-update prices.csv --app shop.py --meta currency=EUR", EXIT_MEANINGS),
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
run.add_to(app)
submit.add_to(app)
load.add_to(app)
worker.add_to(app)
serve.add_to(app)
ops.add_to(app)
waits.add_to(app)
lifecycle.add_to(app)
deliveries.add_to(app)
webhooks.add_to(app)
blobs.add_to(app)
machines.add_to(app)
verify.add_to(app)
doctor.add_to(app)
db.add_to(app)
idempotency.add_to(app)
keys.add_to(app)
audit.add_to(app)
config.add_to(app)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options stand after the subcommand."""


@cache
def _command() -> Callable[..., Any]:
    """All there is to call, made when it is first asked for."""
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and say with which code the process should exit; a bug still shows its traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    with stdout_for_documents() if as_json else nullcontext():
        return _called(given, as_json=as_json)


def _called(given: list[str], *, as_json: bool) -> int:
    try:
        return _command()(given, prog_name="penstock", standalone_mode=False) or 0
    except PenstockError as error:
        return _failed(error, as_json=as_json)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        full = DiskFull(f"{error.filename or 'the output'} cannot be written: {error.strerror}")
        return _failed(full, as_json=as_json)
    except typer.TyperException as error:
        report_usage(error, as_json=as_json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED


def _failed(error: PenstockError, *, as_json: bool) -> int:
    report(error, as_json=as_json)
    return exit_code(error)
