"""Every command of ``aws sqs``, as a shell would give it; prints one JSON document.

``awscli_walkthrough.py URL``: the commands run in this process, as starting ``aws`` takes a second.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import Any

from awscli.clidriver import create_clidriver
from botocore import xform_name


def main(endpoint: str) -> None:
    os.environ.update(AWS_ACCESS_KEY_ID="anybody", AWS_SECRET_ACCESS_KEY="nothing", AWS_DEFAULT_REGION="eu-west-1")
    os.environ.update(AWS_MAX_ATTEMPTS="1", AWS_PAGER="", AWS_EC2_METADATA_DISABLED="true")
    driver = create_clidriver()
    used: set[str] = set()
    told: dict[str, Any] = {}

    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        used.add(command)
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                code = driver.main(["--endpoint-url", endpoint, "sqs", command, *arguments])
            except SystemExit as left:
                code = left.code
        return code, output.getvalue(), errors.getvalue().strip()

    def aws(command: str, *arguments: str) -> Any:
        code, output, errors = run(command, *arguments)
        if code:
            raise SystemExit(f"aws sqs {command} {' '.join(arguments)}: {code}\n{errors}")
        return json.loads(output) if output.strip() else None

    dead = aws("create-queue", "--queue-name", "dead")["QueueUrl"]
    on_dead = ("--queue-url", dead)
    arn = aws("get-queue-attributes", *on_dead, "--attribute-names", "QueueArn")["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1"})
    attributes = json.dumps({"RedrivePolicy": policy, "VisibilityTimeout": "60"})
    url = aws("create-queue", "--queue-name", "source", "--attributes", attributes, "--tags", "team=lake")[
        "QueueUrl"
    ]
    queue = ("--queue-url", url)
    told["url"] = aws("get-queue-url", "--queue-name", "source")["QueueUrl"] == url
    told["pages"] = aws("list-queues", "--page-size", "1")["QueueUrls"]
    aws("set-queue-attributes", *queue, "--attributes", "VisibilityTimeout=50,DelaySeconds=0")
    told["timeout"] = aws("get-queue-attributes", *queue, "--attribute-names", "All")["Attributes"][
        "VisibilityTimeout"
    ]
    aws("tag-queue", *queue, "--tags", "stage=test,cost=1")
    aws("untag-queue", *queue, "--tag-keys", "cost")
    told["tags"] = aws("list-queue-tags", *queue)["Tags"]
    aws("add-permission", *queue, "--label", "p", "--aws-account-ids", "111122223333", "--actions", "SendMessage")
    aws("remove-permission", *queue, "--label", "p")
    told["sources"] = aws("list-dead-letter-source-queues", *on_dead)["queueUrls"] == [url]

    binary = json.dumps(
        {"b": {"DataType": "Binary", "BinaryValue": "AP8="}, "s": {"DataType": "String", "StringValue": "ä"}}
    )
    aws("send-message", *queue, "--message-body", "käse", "--message-attributes", binary)
    entries = json.dumps([{"Id": "a", "MessageBody": "one"}, {"Id": "b", "MessageBody": "", "DelaySeconds": 1}])
    batch = aws("send-message-batch", *queue, "--entries", entries)
    told["batch"] = [[entry["Id"] for entry in batch.get(part, [])] for part in ("Successful", "Failed")]
    names = ("--attribute-names", "All", "--message-attribute-names", "All", "--max-number-of-messages", "10")
    received = {
        m["Body"]: m for m in aws("receive-message", *queue, *names, "--wait-time-seconds", "1")["Messages"]
    }
    told["received"] = [sorted(received), received["käse"]["MessageAttributes"]]
    handle = received["käse"]["ReceiptHandle"]
    aws("change-message-visibility", *queue, "--receipt-handle", handle, "--visibility-timeout", "30")
    aws("delete-message", *queue, "--receipt-handle", handle)
    entry = {"Id": "a", "ReceiptHandle": received["one"]["ReceiptHandle"]}
    changes = json.dumps([entry | {"VisibilityTimeout": 0}])
    told["changed"] = aws("change-message-visibility-batch", *queue, "--entries", changes)["Successful"]

    # the second receive makes it a dead letter; a move task takes it back
    told["none"] = aws("receive-message", *queue)
    task = aws("start-message-move-task", "--source-arn", arn)["TaskHandle"]
    again = aws("receive-message", *queue, "--wait-time-seconds", "20")["Messages"][0]
    told["again"] = again["Body"]
    told["tasks"] = len(aws("list-message-move-tasks", "--source-arn", arn)["Results"])
    told["cancelled"] = run("cancel-message-move-task", "--task-handle", task)
    entry = json.dumps([{"Id": "a", "ReceiptHandle": again["ReceiptHandle"]}])
    told["deleted"] = aws("delete-message-batch", *queue, "--entries", entry)["Successful"]
    aws("purge-queue", *queue)
    for each in (url, dead):
        aws("delete-queue", "--queue-url", each)
    told["refused"] = run("send-message", *queue, "--message-body", "late")

    operations = driver.session.get_service_model("sqs").operation_names
    told["unused"] = sorted({xform_name(name, "-") for name in operations} - used)
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
