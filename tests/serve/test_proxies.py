"""What a proxy in front of the server says of its clients, and who may say it."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from serve.serving import Process, headers, wait_until

FORWARDED = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https", "Host": "queues.example"}


@pytest.mark.parametrize(
    ("options", "client", "url"),
    [
        (("--trusted-proxy", "127.0.0.1"), "192.0.2.7", "https://queues.example/"),
        (
            ("--trusted-proxy", "10.0.0.0/8", "--trusted-proxy", "127.0.0.0/8"),
            "192.0.2.7",
            "https://queues.example/",
        ),
        (("--trusted-proxy", "10.0.0.0/8"), "127.0.0.1", "http://queues.example/"),
        ((), "127.0.0.1", "http://queues.example/"),
        (("--public-url", "https://public.example:8443"), "127.0.0.1", "https://public.example:8443/"),
    ],
)
def test_headers_of_trusted_proxies_count(tmp_path: Path, options: tuple[str, ...], client: str, url: str):
    with Process(tmp_path / "root", "--allowed-host", "queues.example", *options) as server:
        asked = json.dumps({"QueueName": "orders"})
        answer = httpx.post(server.url, content=asked, headers=headers("CreateQueue") | FORWARDED, trust_env=False)
        assert answer.json()["QueueUrl"] == f"{url}000000000000/orders"
        wait_until(server.lines, "the log")
        assert server.lines()[0]["client"].rpartition(":")[0] == client
