"""All actions of SQS through a boto3 that speaks the Query protocol; prints one JSON document.

``older_walkthrough.py URL``
"""

from __future__ import annotations

import json
import sys
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError


def main(endpoint: str) -> None:
    sqs = boto3.Session().client(
        "sqs",
        region_name="eu-west-1",
        endpoint_url=endpoint,
        aws_access_key_id="anybody",
        aws_secret_access_key="nothing",
        config=Config(retries={"total_max_attempts": 1}),
    )
    told: dict[str, Any] = {"protocol": sqs.meta.service_model.metadata["protocol"], "errors": {}}
    undone = {*sqs.meta.service_model.operation_names}
    sqs.meta.events.register("after-call.sqs", lambda model, **more: undone.discard(model.name))

    # queues
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    dead_arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": 1})
    url = sqs.create_queue(
        QueueName="source",
        Attributes={"VisibilityTimeout": "60", "RedrivePolicy": policy},
        tags={"team": "ä & <b>"},
    )["QueueUrl"]
    told["listed"] = sqs.list_queues(QueueNamePrefix="s")["QueueUrls"]
    told["url"] = [url, sqs.get_queue_url(QueueName="source")["QueueUrl"]]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "50", "DelaySeconds": "0"})
    told["attributes"] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    sqs.tag_queue(QueueUrl=url, Tags={"stage": "test", "cost": "1"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["cost"])
    told["tags"] = sqs.list_queue_tags(QueueUrl=url)["Tags"]
    sqs.add_permission(QueueUrl=url, Label="p", AWSAccountIds=["111122223333"], Actions=["SendMessage"])
    told["policy"] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]["Policy"]
    sqs.remove_permission(QueueUrl=url, Label="p")
    told["sources"] = sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"]

    # messages
    attributes = {
        "text": {"DataType": "String", "StringValue": "käse\r\n<&>"},
        "number": {"DataType": "Number.int", "StringValue": "12"},
        "bytes": {"DataType": "Binary.x", "BinaryValue": b"\x00\xff"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}
    body = "line\r\nbreak\ttab <&> \U0001f9c0 "
    sent = sqs.send_message(
        QueueUrl=url, MessageBody=body, MessageAttributes=attributes, MessageSystemAttributes=trace
    )
    batch = sqs.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "late", "MessageBody": "late", "DelaySeconds": 900},
            {"Id": "bad", "MessageBody": "\x01"},
            {"Id": "good", "MessageBody": "good", "MessageAttributes": attributes},
        ],
    )
    told["batch"] = {
        "sent": [entry["Id"] for entry in batch["Successful"]],
        "failed": [(entry["Id"], entry["Code"], entry["SenderFault"]) for entry in batch["Failed"]],
    }
    received = sqs.receive_message(
        QueueUrl=url,
        AttributeNames=["All"],
        MessageAttributeNames=["All"],
        MaxNumberOfMessages=10,
        WaitTimeSeconds=1,
    )["Messages"]
    by_body = {message["Body"]: message for message in received}
    message = by_body[body]
    told["received"] = {
        "bodies": sorted(by_body),
        "same": [
            message["MessageId"] == sent["MessageId"],
            message["MD5OfBody"] == sent["MD5OfMessageBody"],
            message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"],
            message["MessageAttributes"] == attributes,
        ],
        "attributes": message["Attributes"],
    }
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=10)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    handle = by_body["good"]["ReceiptHandle"]
    changed = sqs.change_message_visibility_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 0},
            {"Id": "b", "ReceiptHandle": "garbage", "VisibilityTimeout": 0},
        ],
    )
    told["changed"] = [[entry["Id"] for entry in changed[part]] for part in ("Successful", "Failed")]

    # dead letters: the second receive moves the message, and a task takes it back
    told["moved"] = sqs.receive_message(QueueUrl=url).get("Messages", [])
    task = sqs.start_message_move_task(SourceArn=dead_arn)["TaskHandle"]
    again = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
    told["again"] = [message["Body"] for message in again]
    [result] = sqs.list_message_move_tasks(SourceArn=dead_arn)["Results"]
    told["task"] = {name: result[name] for name in ("SourceArn", "ApproximateNumberOfMessagesToMove")}
    deleted = sqs.delete_message_batch(
        QueueUrl=url,
        Entries=[{"Id": "a", "ReceiptHandle": again[0]["ReceiptHandle"]}, {"Id": "b", "ReceiptHandle": "garbage"}],
    )
    told["deleted"] = [[entry["Id"] for entry in deleted[part]] for part in ("Successful", "Failed")]

    # a FIFO queue
    fifo = sqs.create_queue(QueueName="f.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    first, second = (
        sqs.send_message(QueueUrl=fifo, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="d")
        for _ in range(2)
    )
    told["duplicate"] = [first[name] == second[name] for name in ("MessageId", "SequenceNumber")]
    attempts = [sqs.receive_message(QueueUrl=fifo, ReceiveRequestAttemptId="a")["Messages"] for _ in range(2)]
    told["attempts"] = len({message["ReceiptHandle"] for [message] in attempts})

    # refusals
    def refused(name: str, **given: Any) -> None:
        try:
            getattr(sqs, name)(**given)
        except ClientError as error:
            told["errors"][name] = {
                "class": type(error).__name__,
                **error.response["Error"],
                "status": error.response["ResponseMetadata"]["HTTPStatusCode"],
                "request": error.response["ResponseMetadata"]["RequestId"],
            }

    refused("cancel_message_move_task", TaskHandle=task)
    refused("delete_message", QueueUrl=url, ReceiptHandle="garbage")
    refused("receive_message", QueueUrl=url, MaxNumberOfMessages=11)
    sqs.purge_queue(QueueUrl=url)
    refused("purge_queue", QueueUrl=url)
    for each in (url, dead, fifo):
        sqs.delete_queue(QueueUrl=each)
    told["undone"] = sorted(undone)
    refused("send_message", QueueUrl=url, MessageBody="late")
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
