"""The command that starts the HTTP server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from lakequeue.cli.session import Session, usage
from lakequeue.errors import QueueClientError


def serve(
    ctx: typer.Context,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen at; any except loopback needs --keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 chooses a free port.")] = 9324,
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="JSON file of access keys; every request must be signed with one of them."
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TLS certificate, in PEM; needs --tls-key.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Private key of the certificate, in PEM.")
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Host name to allow in addition to those of this machine; repeatable."),
    ] = None,
    max_body: Annotated[
        int, typer.Option(min=1, max=67_108_864, metavar="BYTES", help="Maximum size of a request body.")
    ] = 3_407_872,
    max_connections: Annotated[
        int, typer.Option(min=1, metavar="N", help="Maximum number of open connections.")
    ] = 1_000,
    account: Annotated[
        str, typer.Option(metavar="ID", help="Account in the URLs and ARNs of queues: 12 digits.")
    ] = "000000000000",
    metrics_queues: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Queues with metrics of their own, the oldest first; the rest is summed."
        ),
    ] = 100,
    max_shards: Annotated[
        int, typer.Option(min=1, metavar="N", help="Maximum number of shards of queues that clients create.")
    ] = 16,
    access_log: Annotated[
        bool, typer.Option("--access-log/--no-access-log", help="Log each request as a line of JSON.")
    ] = True,
) -> None:
    """Serve SQS clients over HTTP."""
    session: Session = ctx.obj
    from lakequeue.conditions import sandbox

    try:
        from lakequeue.serve import logs
        from lakequeue.serve.app import Application
        from lakequeue.serve.keys import Keys
        from lakequeue.serve.server import Certificate, Server, is_loopback
    except ModuleNotFoundError as error:
        raise QueueClientError(
            f"serve needs {error.name}, which is not installed: pip install 'lakequeue[serve]'"
        ) from error

    if keys is None and not is_loopback(host):
        usage(f"--host {host} can be reached from other machines: give --keys as well")
    if not re.fullmatch("[0-9]{12}", account):
        usage(f"--account must have 12 digits, unlike {account}")
    if (tls_cert is None) != (tls_key is None):
        usage("--tls-cert and --tls-key belong together")
    certificate = Certificate(tls_cert, tls_key) if tls_cert and tls_key else None
    if certificate:
        certificate.context()
    access = None if keys is None else Keys.read(keys)
    lake = session.lake()
    application = Application(lake, access, max_body, allowed_host or (), account, metrics_queues, max_shards)
    server = Server(application, host, port, certificate, max_connections)
    url = server.bind()
    lake.runtime.prepare()
    sandbox.shared.nice = 10  # requests without a condition have priority
    logs.configure(lake.clock, access_log, session.verbose)
    session.note(f"serving {session.root} at {url}")
    session.note(f"console: {url}/console/")
    server.run()
