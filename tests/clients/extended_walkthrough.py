"""Amazon's extended client for Python, which replaces boto3's sessions; S3 is in this process."""

from __future__ import annotations

import json
import sys

import boto3
import sqs_extended_client  # noqa: F401
from moto import mock_aws

LARGE = "large \u00e9 " * 50_000


def main(url: str) -> None:
    session = boto3.session.Session("any", "secret-of-tests", region_name="eu-west-1")
    s3 = session.client("s3")
    s3.create_bucket(Bucket="pay-load-s", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    sqs = session.client("sqs", endpoint_url=url)
    sqs.large_payload_support, sqs.delete_payload_from_s3, sqs.s3_client = "pay-load-s", True, s3
    queue = sqs.create_queue(QueueName="large")["QueueUrl"]

    def receive() -> list[dict[str, str]]:
        asked = {"QueueUrl": queue, "MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"]}
        return sqs.receive_message(**asked, VisibilityTimeout=300).get("Messages", [])

    def stored() -> int:
        return s3.list_objects_v2(Bucket="pay-load-s")["KeyCount"]

    sqs.send_message(QueueUrl=queue, MessageBody=LARGE)
    sqs.send_message(QueueUrl=queue, MessageBody="small")
    bodies = [LARGE + str(number) for number in range(3)]
    entries = [{"Id": str(number), "MessageBody": body} for number, body in enumerate(bodies)]
    sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    first = receive()
    offloaded = stored()
    for message in first:
        handle = message["ReceiptHandle"]
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=0)
    second = receive()
    one, *others = second
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=one["ReceiptHandle"])
    many = [{"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]} for number, each in enumerate(others)]
    deleted = sqs.delete_message_batch(QueueUrl=queue, Entries=many)
    same = [
        sorted(each["Body"] for each in found) == sorted([LARGE, "small", *bodies]) for found in (first, second)
    ]
    told = {"same": same, "offloaded": offloaded, "failed": deleted.get("Failed", []), "left": stored()}
    print(json.dumps(told))


if __name__ == "__main__":
    with mock_aws(config={"core": {"passthrough": {"urls": ["http://127.0.0.1.*"]}}}):
        main(sys.argv[1])
