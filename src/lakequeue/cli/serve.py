"""Commands that start the server, and write files for deployment."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lakequeue.cli import render
from lakequeue.cli.options import argument, flag, option
from lakequeue.cli.session import CommandContext, usage
from lakequeue.errors import DamagedTable, MissingPackage, QueueClientError

if TYPE_CHECKING:
    from lakequeue.client import LakeQueue

_PACKAGE = Path(__file__).parents[1]
_PROJECT = _PACKAGE.parents[1]


def serve(
    ctx: CommandContext,
    host: str = option("127.0.0.1", "Address to listen at; any except loopback needs --keys.", "ADDRESS"),
    port: int = typer.Option(9324, min=0, max=65535, help="Port to listen at; 0 chooses a free port."),
    keys: Path | None = option(
        None, "JSON file of access keys; every request must be signed with one of them.", "FILE"
    ),
    keys_group: bool = flag(False, "The group of the file of keys may read it, too.", "--keys-group"),
    tls_cert: Path | None = option(None, "TLS certificate, in PEM; needs --tls-key.", "FILE"),
    tls_key: Path | None = option(None, "Private key of the certificate, in PEM.", "FILE"),
    allowed_host: list[str] | None = option(
        None, "Host name to allow in addition to those of this machine; repeatable.", "NAME"
    ),
    public_url: str | None = option(
        None, "Scheme and host under which clients reach the server through a proxy.", "URL"
    ),
    command_prefix: str | None = option(
        None, "How commands that the console shows begin here, instead of lakequeue --root ROOT.", "TEXT"
    ),
    trusted_proxy: list[str] | None = option(
        None, "Address or network whose X-Forwarded headers count; repeatable.", "ADDRESS"
    ),
    max_body: int = option(3_407_872, "Maximum size of a request body.", "BYTES", min=1, max=67_108_864),
    max_connections: int = option(2_000, "Maximum number of open connections.", "N", min=1),
    account: str = option("000000000000", "Account in the URLs and ARNs of queues: 12 digits.", "ID"),
    metrics_queues: int = option(
        100, "Queues with metrics of their own, the oldest first; the rest is summed.", "N", min=0
    ),
    max_shards: int = option(16, "Maximum number of shards that clients give a queue.", "N", min=1),
    ignore_kms: bool = flag(
        False, "Keep and show KMS keys of queues, which encrypt nothing here.", "--ignore-kms"
    ),
    sse_managed: bool = flag(
        False, "Report every queue as encrypted, because the storage encrypts it.", "--sse-managed"
    ),
    create_root: bool = flag(
        False, "Create the root if it is missing, which is refused otherwise.", "--create-root"
    ),
    access_log: bool = flag(True, "Log each request as a line of JSON.", "--access-log/--no-access-log"),
) -> None:
    """Serve SQS clients over HTTP."""
    # pyarrow reads this on import; with its own heaps, 260 threads kept 521 MiB instead of 261
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from lakequeue.conditions import sandbox
    from lakequeue.entry_verbs import prepare

    try:
        from lakequeue.serve import logs
        from lakequeue.serve.app import Application
        from lakequeue.serve.keys import Keys
        from lakequeue.serve.server import Certificate, Server, is_loopback
        from lakequeue.serve.sqs.queue_attributes import Encryption
    except ModuleNotFoundError as error:
        raise MissingPackage.of("serve", "serve", error) from error

    if keys is None and not is_loopback(host):
        usage(f"--host {host} can be reached from other machines: give --keys as well")
    if not re.fullmatch("[0-9]{12}", account):
        usage(f"--account must have 12 digits, unlike {account}")
    if (tls_cert is None) != (tls_key is None):
        usage("--tls-cert and --tls-key belong together")
    certificate = Certificate(tls_cert, tls_key) if tls_cert and tls_key else None
    if certificate:
        certificate.context()
    if public_url is not None:
        public = re.fullmatch("https?://([A-Za-z0-9.-]+|\\[[0-9A-Fa-f:.]+\\])(:[0-9]{1,5})?", public_url)
        if public is None:
            usage(f"--public-url must be a scheme and a host, such as https://queues.example, unlike {public_url}")
        allowed_host = [*(allowed_host or ()), public[1]] if allowed_host or keys is None else None
    access = None if keys is None else Keys.read(keys, keys_group)
    lake = ctx.obj.lake()
    encryption = Encryption(ignore_kms, sse_managed)
    application = Application(
        *(lake, access, max_body, allowed_host or (), account, metrics_queues, max_shards, public_url, encryption),
        command_prefix=command_prefix,
    )
    server = Server(application, host, port, certificate, max_connections, trusted_proxy or ())
    url = server.bind()
    if not create_root:  # a volume that is not mounted looks like a new root
        _check_root(lake)
    prepare(lake)
    sandbox.shared.nice = 10  # requests without a condition have priority
    logs.configure(lake.clock, access_log, ctx.obj.verbose)
    ctx.obj.note(f"serving {ctx.obj.root} at {url}")
    ctx.obj.note(f"console: {url}/console/")
    with lake.schedules.running():
        server.run()


def _check_root(lake: LakeQueue) -> None:
    from lakequeue.entry_verbs import check_catalog

    try:
        check_catalog(lake)
    except DamagedTable as error:
        cure = "copy the root, then `lakequeue repair --all`"
        raise QueueClientError(f"{error.message}, and {cure}: no queue can be served before") from None
    except QueueClientError as error:
        if "creating a queue makes it" not in error.message:
            raise
        found = error.message.partition(";")[0].partition(" (is its")[0]
        raise QueueClientError(f"{found}; is it mounted, was it emptied? --create-root makes a new one") from None


def deploy_files(
    ctx: CommandContext,
    folder: Path = argument(..., "New or empty directory.", "DIR"),
) -> None:
    """Write dashboards, alerts, and files for containers, Kubernetes and systemd into a directory."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise QueueClientError(f"{folder} is not empty; nothing was written")
    if (_PACKAGE / "deploy").is_dir():
        _copy(_PACKAGE / "deploy", folder)
    else:  # a checkout; pyproject.toml puts the same files into the wheel
        _copy(_PROJECT / "deploy", folder)
        _copy(_PROJECT / "conf" / "grafana", folder / "grafana")
        shutil.copy(_PROJECT / "conf" / "prometheus" / "alerts.yml", folder)
    written = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    ctx.obj.changed({"folder": str(folder), "files": written}, f"{render.count(len(written), 'file')} in {folder}")


def _copy(source: Path, target: Path) -> None:  # pip compiles installed Python files
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
