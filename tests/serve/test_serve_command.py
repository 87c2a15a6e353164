"""`lakequeue serve`: what its options refuse, and TLS."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest
import trustme
from botocore.exceptions import ClientError
from cryptography.hazmat.primitives import serialization
from typer.testing import CliRunner

from lakequeue.cli import app
from lakequeue.errors import InvalidOptions
from lakequeue.serve.server import Certificate, is_loopback, listen
from serve.raw_requests import JSON, everything, wire_error
from serve.serving import PATIENCE, issued, key_file, served_with, serving, sqs

PROGRAM = "from lakequeue.cli import main; main()"
AKID = ("AKID", "0123456789abcdef")
LISTING = {"x-amz-target": "AmazonSQS.ListQueues", "content-type": JSON}


def refused(root: Path, *options: object) -> tuple[int, str]:
    """Exit code and the one line that tells why; no root was made."""
    result = CliRunner().invoke(app, ["--root", str(root), "serve", *map(str, options)])
    assert result.stdout == "" and len(result.stderr.splitlines()) == 1
    assert not root.exists()
    return result.exit_code, result.stderr


def test_a_root_that_does_not_exist_is_refused(root):
    """As a volume that was not mounted, whose directory is there and empty."""
    assert "does not exist; is it mounted, was it emptied? --create-root" in refused(root)[1]
    root.mkdir()
    result = CliRunner().invoke(app, ["--root", str(root), "serve"])
    told = "holds no queues; is it mounted, was it emptied? --create-root"
    assert result.exit_code == 3 and told in result.stderr
    assert not list(root.iterdir())


def test_heaps_of_threads_keep_nothing_of_large_messages(root):
    """In a process of its own: Arrow chooses its heap once."""
    told = "lambda: print(__import__('pyarrow').default_memory_pool().backend_name)"
    given = ["--root", str(root), "serve", "--port", "0"]
    code = f"import atexit, sys; atexit.register({told}); sys.argv[1:] = {given}"
    ended = subprocess.run([sys.executable, "-c", f"{code}; {PROGRAM}"], capture_output=True, text=True)
    assert ended.stdout == "system\n" and "does not exist" in ended.stderr


REFUSED = {
    "--public-url must be a scheme and a host": [
        ("--public-url", url)
        for url in ("queues.example", "https://queues.example/", "ftp://x", "https://a b", "https://")
    ],
    "a trusted proxy is an address or a network": [
        ("--trusted-proxy", text) for text in ("proxy.example", "10.0.0.1/8", "*")
    ],
    "--keys": [  # other machines are served with keys only
        ("--port", 0, "--host", host)
        for host in ("0.0.0.0", "::", "10.1.2.3", "queue.example", "localhost.example", "")
    ],
    "12 digits": [("--account", text) for text in ("", "1", "1" * 13, "12345678901x", "\u0661" * 12)],
    "": [("--max-body", 0), ("--max-connections", 0), ("--metrics-queues", -1), ("--port", 65536)],
}
"""What an error says, and options that get it."""


@pytest.mark.parametrize(("said", "options"), [(said, each) for said in REFUSED for each in REFUSED[said]])
def test_options_that_cannot_be_are_refused(root, said, options):
    code, line = refused(root, *options)
    assert code == 2 and said in line


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


@pytest.fixture
def keys(tmp_path):
    return key_file(tmp_path / "keys.json", {AKID[0]: {"secret": AKID[1]}})


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def certificate(authority, tmp_path_factory):
    return issued(tmp_path_factory.mktemp("tls"), authority)


def test_what_this_machine_alone_is():
    assert all(map(is_loopback, ["127.0.0.1", "127.1.2.3", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "", "localhost.example", "128.0.0.1"]))


def test_a_wrong_file_of_keys(root, keys):
    keys.write_text("{}", encoding="utf-8")
    assert refused(root, "--keys", keys) == (2, f"error: usage: {keys}: the file: must have a key\n")
    keys.chmod(0o644)
    assert "other users may read" in refused(root, "--keys", keys)[1]
    code, line = refused(root, "--keys", keys.with_name("none"))
    assert code == 3 and "No such file" in line


def test_certificate_and_key_belong_together(root, certificate, authority, tmp_path):
    assert refused(root, "--tls-cert", certificate.cert)[0] == 2
    assert refused(root, "--tls-key", certificate.key)[0] == 2
    code, line = refused(root, "--tls-cert", certificate.cert, "--tls-key", tmp_path / "none")
    assert code == 3 and "No such file" in line and str(tmp_path / "none") in line
    other = issued(tmp_path, authority)
    code, line = refused(root, "--tls-cert", certificate.cert, "--tls-key", other.key)
    assert code == 2 and "key values mismatch" in line
    other.cert.write_text("nothing", encoding="ascii")
    assert refused(root, "--tls-cert", other.cert, "--tls-key", other.key)[0] == 2


def test_a_key_that_every_user_may_read_is_refused(authority, tmp_path):
    found = issued(tmp_path, authority)
    found.key.chmod(0o640)
    found.context()
    found.key.chmod(0o644)
    with pytest.raises(InvalidOptions, match="every user may read"):
        found.context()


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(certificate, tmp_path):
    key = serialization.load_pem_private_key(certificate.key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.touch(0o600)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    locked.write_bytes(key.private_bytes(*form, serialization.BestAvailableEncryption(b"password")))
    with pytest.raises(InvalidOptions, match="without a password"):
        Certificate(certificate.cert, locked).context()


def test_without_the_extra_it_says_what_to_install(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "lakequeue.serve.server")
    code, line = refused(root)
    assert code == 3 and "serve needs uvicorn" in line and "pip install 'botocore" in line


def test_a_port_that_is_taken(root):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, line = refused(root, "--port", port)
    assert (code, line) == (
        3,
        f"error: environment: cannot listen at 127.0.0.1, port {port}: Address already in use\n",
    )


def test_an_address_of_another_machine(root, keys):
    code, line = refused(root, "--host", "192.0.2.1", "--port", 0, "--keys", keys)
    assert code == 3 and "cannot listen at 192.0.2.1" in line
    with pytest.raises(OSError, match="cannot listen at nowhere.invalid"):
        listen("nowhere.invalid", 0)


def test_the_port_that_was_taken_is_printed(root, keys):
    command = [sys.executable, "-c", PROGRAM, "--root", str(root), "serve", "--port", "0", "--keys", str(keys)]
    options = [
        "--create-root",
        "--no-access-log",
        "--max-body",
        "1000",
        "--max-connections",
        "50",  # with five, a connection that is just ending might have to make room
        "--allowed-host",
        "queue.example",
    ]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        url = process.stderr.readline().rstrip().rpartition(" at ")[2]
        assert process.stderr.readline() == f"console: {url}/console/\n"

        def code_for(host: str) -> str:
            headers = LISTING | {"host": host}
            answer = httpx.post(url, headers=headers, content=b"{}", trust_env=False, timeout=PATIENCE)
            return wire_error(answer.status_code, answer.headers, answer.content).code

        def sent(content: bytes) -> str:
            headers = {"X-Lakequeue-Console": "1", "Content-Type": "application/json"}
            address, auth = f"{url}/console/api/queues/orders/send", AKID
            answer = httpx.post(
                address, auth=auth, headers=headers, content=content, trust_env=False, timeout=PATIENCE
            )
            return answer.json()["code"]

        assert code_for("queue.example") == code_for("localhost") == "MissingAuthenticationToken"
        assert code_for("other.example") == "InvalidHost"
        assert sent(b"{}" + b" " * 998) == "MissingParameter"
        assert sent(b"{}" + b" " * 999) == "RequestEntityTooLarge"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("given", [True, False])
def test_options_about_queues_and_keys_reach_the_server(root, keys, given):
    keys.chmod(0o640 if given else 0o600)
    options = ["--max-shards", "2", "--keys-group", "--ignore-kms", "--sse-managed"] if given else []
    with served_with(root, "--keys", str(keys), *options) as server:
        client = sqs(server.url, AKID)
        url = client.create_queue(QueueName="orders", Attributes={"Shards": "2"})["QueueUrl"]
        found = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        assert found["SqsManagedSseEnabled"] == ("true" if given else "false")

        def changed(refusal: str, **attributes: str) -> bool:
            try:
                client.set_queue_attributes(QueueUrl=url, Attributes=attributes)
            except ClientError as error:
                assert error.response["Error"]["Code"] == refusal
                return False
            return True

        assert changed("InvalidAttributeValue", Shards="3") is not given
        assert changed("AWS.SimpleQueueService.UnsupportedOperation", KmsMasterKeyId="alias/aws/sqs") is given


@pytest.mark.parametrize(
    ("tls", "ciphers", "accepted"),
    [
        (ssl.TLSVersion.TLSv1_3, None, True),
        (ssl.TLSVersion.TLSv1_2, None, True),
        (ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES128-SHA", False),
        (ssl.TLSVersion.TLSv1_1, None, False),
        (ssl.TLSVersion.TLSv1, None, False),
    ],
)
def test_old_versions_of_tls_and_weak_ciphers_are_refused(certificate, authority, tls, ciphers, accepted):
    """A client that would take them: its own limits are lifted."""
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(trusted)
    trusted.set_ciphers(f"{ciphers or 'ALL'}:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        trusted.minimum_version = trusted.maximum_version = tls
    assert shakes_hands(trusted, certificate.context()) is accepted


def test_no_cipher_of_the_server_is_weak(certificate):
    context = certificate.context()
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    for cipher in context.get_ciphers():
        assert cipher["aead"] or cipher["kea"] in ("kx-ecdhe", "kx-dhe"), cipher
        assert cipher["strength_bits"] >= 128 and cipher["auth"] != "auth-null", cipher
        assert not re.search("RC4|3DES|NULL|EXPORT|MD5|PSK|SRP", cipher["name"]), cipher


def shakes_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> bool:
    """Whether both sides agree on TLS, in memory."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(down, up, server_hostname="localhost"),
        server.wrap_bio(up, down, server_side=True),
    ]
    try:
        while sides:
            for side in list(sides):
                try:
                    side.do_handshake()
                    sides.remove(side)
                except ssl.SSLWantReadError:
                    pass
    except ssl.SSLError:
        return False
    return True


def test_uvicorn_has_an_upper_bound():
    """Its private parts are overridden (`serve/connection.py`), and what is older takes weak ciphers."""
    described = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    bounds = re.search(r'"uvicorn>=([0-9.]+),<([0-9.]+)"', described)
    assert bounds, "one above which it was not tried, one below which it is not safe"
    low, installed, high = (
        tuple(map(int, text.split("."))) for text in (bounds[1], version("uvicorn"), bounds[2])
    )
    assert (0, 31) <= low <= installed < high


def test_requests_over_tls(root, certificate, authority):
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    with serving(root, certificate=certificate) as running:
        assert running.url.startswith("https://")
        with httpx.Client(verify=trusted, trust_env=False, timeout=PATIENCE) as client:
            url = f"https://localhost:{running.port}"
            made = client.post(
                url,
                headers=LISTING | {"x-amz-target": "AmazonSQS.CreateQueue"},
                content=json.dumps({"QueueName": "orders"}),
            )
            assert made.json()["QueueUrl"] == f"{url}/000000000000/orders"
        with running.connected() as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP" not in everything(plain)
        with httpx.Client(verify=trusted, trust_env=False, timeout=PATIENCE) as client:
            assert client.post(url, headers=LISTING, content=b"{}").status_code == 200
