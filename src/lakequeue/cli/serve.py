"""`lakequeue serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from lakequeue.cli.frame import Session


def serve(
    ctx: typer.Context,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at.")] = 9324,
    access_log: Annotated[
        bool, typer.Option("--access-log/--no-access-log", help="Write a line of JSON for each request.")
    ] = True,
) -> None:
    """Answer SQS clients over HTTP."""
    session: Session = ctx.obj
    from lakequeue.serve import logs
    from lakequeue.serve.app import Application
    from lakequeue.serve.server import Server

    lake = session.lake()
    lake.prepare()
    logs.configure(lake.clock, access_log, session.verbose)
    server = Server(Application(lake), host, port)
    session.note(f"serving {session.root} at http://{host}:{port}")
    server.run()
