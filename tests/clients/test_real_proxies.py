"""The recipes for proxies, with the real ones; `tests/serve/test_proxies.py` has a load balancer."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from serve.serving import ServerProcess, free_port, issued, key_file, listens, sqs, wait_until

pytestmark = pytest.mark.clients

RECIPES = Path(__file__).parents[2] / "docs" / "operation" / "serve.md"
NAME = "localhost"
KEY = ("AKIDADMIN", "admin-secret-of-tests")


def recipe(kind: str, folder: Path, server: int, port: int) -> str:
    """A recipe of the documentation, with the ports, names and files of a test."""
    [found] = re.findall(f"```{kind}\\n(.*?)```", RECIPES.read_text(), re.DOTALL)
    found = found.replace("9324", str(server)).replace("/etc/ssl", str(folder))
    if kind == "caddy":
        return found.replace("queues.example {", f"https://{NAME}:{port} {{")
    return found.replace("queues.example", NAME).replace("443", f"127.0.0.1:{port}")


@contextmanager
def nginx(folder: Path, server: int, port: int) -> Iterator[None]:
    for_tests = f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors; events {{}}\n"
    paths = "".join(
        f"{part}_temp_path {folder}/{part};" for part in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configured = folder / "nginx.conf"
    configured.write_text(
        f"{for_tests}http {{ access_log off; {paths}\n{recipe('nginx', folder, server, port)}}}\n"
    )
    with running("nginx", "-p", str(folder), "-c", str(configured)):
        yield


@contextmanager
def caddy(folder: Path, server: int, port: int) -> Iterator[None]:
    configured = folder / "Caddyfile"
    options = "{\n admin off\n auto_https disable_redirects\n}\n"
    configured.write_text(options + recipe("caddy", folder, server, port))
    with running("caddy", "run", "--adapter", "caddyfile", "--config", str(configured)):
        yield


@contextmanager
def running(program: str, *options: str) -> Iterator[None]:
    assert shutil.which(program), f"{program} is missing"
    process = subprocess.Popen([program, *options], stderr=subprocess.DEVNULL)
    try:
        yield
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.mark.parametrize("proxy", [nginx, caddy])
def test_clients_reach_the_server_through_a_proxy(tmp_path: Path, proxy):
    issued(tmp_path, trustme.CA(), NAME)
    keys, port = key_file(tmp_path / "keys.json", {KEY[0]: {"secret": KEY[1]}}), free_port()
    options = ["--keys", str(keys), "--public-url", f"https://{NAME}:{port}", "--trusted-proxy", "127.0.0.0/8"]
    with ServerProcess(tmp_path / "root", *options) as server, proxy(tmp_path, server.port, port):
        wait_until(lambda: listens(port), "the proxy")
        client = sqs(f"https://{NAME}:{port}", KEY, tmp_path / "authority.pem")
        url = client.create_queue(QueueName="orders")["QueueUrl"]
        assert url == f"https://{NAME}:{port}/000000000000/orders"
        entries = [{"Id": str(number), "MessageBody": "x" * 104_000} for number in range(10)]
        assert len(client.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 10
        received = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)["Messages"]
        assert len(received) == 10
        trusted = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))
        plain = socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.1", 0))
        with trusted.wrap_socket(plain, server_hostname=NAME) as stranger:
            forged = f"GET /health HTTP/1.1\r\nHost: {NAME}:{port}\r\nX-Forwarded-For: 192.0.2.9\r\n\r\n"
            stranger.sendall(forged.encode())
            assert b" 200 " in stranger.recv(1_000)
        wait_until(lambda: any("/health" in line["request"] for line in server.lines()), "the log")
        assert {line["client"].rpartition(":")[0] for line in server.lines()} == {"127.0.0.1"}
