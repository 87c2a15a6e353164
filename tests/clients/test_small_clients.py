"""Small clients of SQS in Python: Amazon's own for large messages, and one that signs requests by GET itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from serve.serving import ServerProcess, issued, key_file

pytestmark = pytest.mark.clients

BODY = "a b+c:d/e~f&g=h%20i#\u00e9 \u2028 <x/>"


@pytest.mark.spec("RCP-15")
def test_the_extended_client_deletes_what_it_moved_to_s3(served: ServerProcess) -> None:
    program = Path(__file__).with_name("extended_walkthrough.py")
    done = subprocess.run([sys.executable, str(program), served.url], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"same": [True, True], "offloaded": 4, "failed": [], "left": 0}
    counts = served.lake.queue("large").counts()
    assert (counts.visible, counts.in_flight) == (0, 0)


def test_aiosqs_sends_receives_and_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parser finds no message in an answer with Amazon's namespace, and each once the text has none."""
    from aiosqs import SQSClient
    from aiosqs import client as module
    from aiosqs.exceptions import SQSErrorResponse

    given = module.parse_xml_result_response
    namespace = ' xmlns="http://queue.amazonaws.com/doc/2012-11-05/"'

    def parsed(action: str, body: str, logger: object) -> object:
        assert body.count(namespace) == 1
        return given(action, body.replace(namespace, ""), logger)

    certificate = issued(tmp_path, trustme.CA())
    keys = key_file(tmp_path / "keys.json", {"ALL": {"secret": "a-secret-of-tests"}})
    options = ("--tls-cert", str(certificate.cert), "--tls-key", str(certificate.key), "--keys", str(keys))

    async def run(server: ServerProcess) -> str:
        host = f"127.0.0.1:{server.port}"
        async with SQSClient("eu-west-1", "ALL", "a-secret-of-tests", host, verify_ssl=False) as client:
            url = str((await client.get_queue_url("orders.fifo"))["QueueUrl"])
            for number in range(3):
                ids = {"message_group_id": f"g:/+~{number % 2}", "message_deduplication_id": f"{number}+/"}
                assert (await client.send_message(url, BODY, **ids))["MessageId"]
            assert await client.receive_message(url, 1, 60, wait_time_seconds=1) == []
            assert queue.counts().in_flight == 1
            monkeypatch.setattr(module, "parse_xml_result_response", parsed)
            [other] = await client.receive_message(url, 10, 60)
            await client.delete_message(url, other["ReceiptHandle"])
            assert await client.receive_message(url, 10, 60) is None
            with pytest.raises(SQSErrorResponse) as refused:
                await client.send_message(url.replace("orders", "others"), BODY)
            assert refused.value.error.code == "AWS.SimpleQueueService.NonExistentQueue"
            return str(other["Body"])

    with ServerProcess(tmp_path / "root", *options) as server:
        queue = server.lake.create_queue("orders.fifo", fifo=True)
        assert asyncio.run(asyncio.wait_for(run(server), 60)) == BODY
    assert (queue.counts().visible, queue.counts().in_flight) == (1, 1)
    assert {message.body for message in queue.peek()} == {BODY}
