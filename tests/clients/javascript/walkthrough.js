// A queue, a consumer of sqs-consumer, and the names of errors. Prints one JSON document.

import { setTimeout as pause } from "node:timers/promises";

import {
  CreateQueueCommand,
  DeleteMessageCommand,
  DeleteQueueCommand,
  GetQueueAttributesCommand,
  ReceiveMessageCommand,
  SendMessageBatchCommand,
  SendMessageCommand,
  SQSClient,
} from "@aws-sdk/client-sqs";
import { Consumer } from "sqs-consumer";

const VISIBILITY = 3;
const EXTENSIONS = 4; // one a second, so the slow message is held for longer than its first timeout

const sqs = new SQSClient({
  endpoint: process.argv[2],
  region: "eu-west-1",
  credentials: { accessKeyId: "anybody", secretAccessKey: "nothing" },
  maxAttempts: 1,
});

let extensions = 0;
sqs.middlewareStack.add(
  (next, context) => async (request) => {
    const answer = await next(request);
    extensions += context.commandName === "ChangeMessageVisibilityCommand" && request.input.VisibilityTimeout > 0;
    return answer;
  },
  { step: "initialize" },
);

const { QueueUrl } = await sqs.send(
  new CreateQueueCommand({ QueueName: "jobs", Attributes: { VisibilityTimeout: String(VISIBILITY) } }),
);

const sent = await sqs.send(
  new SendMessageCommand({
    QueueUrl,
    MessageBody: "slow",
    MessageAttributes: {
      kind: { DataType: "String", StringValue: "käse 🧀" },
      size: { DataType: "Number.float", StringValue: "12.5" },
      picture: { DataType: "Binary", BinaryValue: Uint8Array.from([0, 255]) },
    },
  }),
);
const batch = await sqs.send(
  new SendMessageBatchCommand({
    QueueUrl,
    Entries: [..."abc", "fails once", "\u0001"].map((body, n) => ({ Id: `n${n}`, MessageBody: body })),
  }),
);

const handled = [];
const failures = [];
const consumer = Consumer.create({
  queueUrl: QueueUrl,
  sqs,
  messageAttributeNames: ["All"],
  messageSystemAttributeNames: ["All"],
  visibilityTimeout: VISIBILITY,
  heartbeatInterval: 1,
  waitTimeSeconds: 20,
  batchSize: 10,
  terminateVisibilityTimeout: true,
  handleMessage: async (message) => {
    const count = Number(message.Attributes.ApproximateReceiveCount);
    if (message.Body === "fails once" && count === 1) {
      throw new Error("once");
    }
    while (message.Body === "slow" && extensions < EXTENSIONS) {
      await pause(20);
    }
    handled.push({ body: message.Body, count, id: message.MessageId, attributes: message.MessageAttributes });
    return message;
  },
});
consumer.on("processing_error", (error) => failures.push(error.message));
consumer.on("error", (error) => failures.push(error.message));

const attributes = async () =>
  (await sqs.send(new GetQueueAttributesCommand({ QueueUrl, AttributeNames: ["All"] }))).Attributes;
const left = async () => {
  const now = await attributes();
  return Number(now.ApproximateNumberOfMessages) + Number(now.ApproximateNumberOfMessagesNotVisible);
};

consumer.start();
while ((await left()) > 0) {
  await pause(50);
}
const stopped = new Promise((resolve) => consumer.once("stopped", resolve));
consumer.stop({ abort: true }); // in the middle of a long poll
await stopped;

const errors = {};
const refused = async (command) => {
  try {
    await sqs.send(command);
  } catch (error) {
    errors[command.constructor.name] = {
      name: error.name,
      message: error.message,
      fault: error.$fault,
      type: error.Error?.Type ?? null,
      code: error.Error?.Code ?? null,
      status: error.$metadata.httpStatusCode,
      requestId: error.$metadata.requestId,
    };
  }
};
await refused(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: "garbage" }));
await refused(new ReceiveMessageCommand({ QueueUrl, MaxNumberOfMessages: 11 }));
await sqs.send(new DeleteQueueCommand({ QueueUrl }));
await refused(new SendMessageCommand({ QueueUrl, MessageBody: "late" }));

console.log(
  JSON.stringify({
    sent: sent.MessageId,
    batch: {
      successful: batch.Successful.map((entry) => entry.Id),
      failed: batch.Failed.map((entry) => [entry.Id, entry.Code, entry.SenderFault]),
    },
    handled,
    failures,
    extensions,
    errors,
  }),
);
