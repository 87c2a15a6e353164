import com.amazonaws.auth.AWSStaticCredentialsProvider;
import com.amazonaws.auth.BasicAWSCredentials;
import com.amazonaws.client.builder.AwsClientBuilder.EndpointConfiguration;
import com.amazonaws.services.sqs.AmazonSQS;
import com.amazonaws.services.sqs.AmazonSQSClientBuilder;
import com.amazonaws.services.sqs.model.AmazonSQSException;
import com.amazonaws.services.sqs.model.ChangeMessageVisibilityBatchRequestEntry;
import com.amazonaws.services.sqs.model.ChangeMessageVisibilityBatchResult;
import com.amazonaws.services.sqs.model.CreateQueueRequest;
import com.amazonaws.services.sqs.model.DeleteMessageBatchRequestEntry;
import com.amazonaws.services.sqs.model.DeleteMessageBatchResult;
import com.amazonaws.services.sqs.model.Message;
import com.amazonaws.services.sqs.model.MessageAttributeValue;
import com.amazonaws.services.sqs.model.ReceiveMessageRequest;
import com.amazonaws.services.sqs.model.SendMessageBatchRequestEntry;
import com.amazonaws.services.sqs.model.SendMessageBatchResult;
import com.amazonaws.services.sqs.model.SendMessageRequest;
import com.amazonaws.services.sqs.model.SendMessageResult;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Map;

/** The walkthrough with version 1 of the SDK, which also checks the digests of what it sends and receives. */
public final class OlderWalkthrough {
    public static void main(String[] arguments) {
        AmazonSQS sqs = AmazonSQSClientBuilder.standard()
                .withEndpointConfiguration(new EndpointConfiguration(arguments[0], "eu-west-1"))
                .withCredentials(new AWSStaticCredentialsProvider(new BasicAWSCredentials("anybody", "nothing")))
                .build();
        fifo(sqs);
        standard(sqs);
        sqs.shutdown();
    }

    private static void fifo(AmazonSQS sqs) {
        String url = sqs.createQueue(new CreateQueueRequest("MyFifoQueue.fifo")
                .addAttributesEntry("FifoQueue", "true")
                .addAttributesEntry("ContentBasedDeduplication", "true"))
                .getQueueUrl();
        for (String listed : sqs.listQueues().getQueueUrls()) {
            print("QueueUrl", listed);
        }

        for (int attempt = 0; attempt < 2; attempt++) {
            SendMessageResult sent = sqs.sendMessage(new SendMessageRequest(url, "This is my message text.")
                    .withMessageGroupId("messageGroup1")
                    .withMessageDeduplicationId("1"));
            print("Sent.MessageId", sent.getMessageId());
            print("Sent.SequenceNumber", sent.getSequenceNumber());
        }

        List<Message> messages = receive(sqs, url);
        for (Message message : messages) {
            print("MessageId", message.getMessageId());
            print("ReceiptHandle", message.getReceiptHandle());
            print("MD5OfBody", message.getMD5OfBody());
            print("Body", message.getBody());
            message.getAttributes().forEach((name, value) -> print("Attribute." + name, value));
        }
        print("SameReceiptHandle", receive(sqs, url).get(0).getReceiptHandle());

        String handle = messages.get(0).getReceiptHandle();
        DeleteMessageBatchResult deleted =
                sqs.deleteMessageBatch(url, List.of(new DeleteMessageBatchRequestEntry("1", handle)));
        print("Deleted", !deleted.getSuccessful().isEmpty() + " " + !deleted.getFailed().isEmpty());
        sqs.deleteMessage(url, handle);
        sqs.deleteQueue(url);

        try {
            sqs.sendMessage(new SendMessageRequest(url, "late").withMessageGroupId("messageGroup1"));
        } catch (AmazonSQSException refused) {
            print("Error.Class", refused.getClass().getSimpleName());
            print("Error.Message", refused.getErrorMessage());
            print("Error.HttpStatus", String.valueOf(refused.getStatusCode()));
            print("Error.Code", refused.getErrorCode());
            print("Error.Type", refused.getErrorType() == AmazonSQSException.ErrorType.Client ? "Sender" : "Receiver");
            print("Error.RequestId", refused.getRequestId());
        }
    }

    private static void standard(AmazonSQS sqs) {
        String url = sqs.createQueue(new CreateQueueRequest("older")
                .addTagsEntry("team", "lake")
                .addTagsEntry("stage", "test"))
                .getQueueUrl();
        print("Tags", new java.util.TreeMap<>(sqs.listQueueTags(url).getTags()).toString());
        sqs.untagQueue(url, List.of("stage"));
        sqs.tagQueue(url, Map.of("cost", "1"));
        print("TagsAfter", new java.util.TreeMap<>(sqs.listQueueTags(url).getTags()).toString());
        sqs.addPermission(url, "p", List.of("111122223333"), List.of("SendMessage"));
        sqs.removePermission(url, "p");

        Map<String, MessageAttributeValue> attributes = Map.of(
                "text", new MessageAttributeValue().withDataType("String").withStringValue("k\u00e4se <&>"),
                "bytes", new MessageAttributeValue().withDataType("Binary")
                        .withBinaryValue(ByteBuffer.wrap(new byte[] {0, -1})));
        SendMessageBatchResult sent = sqs.sendMessageBatch(url, List.of(
                new SendMessageBatchRequestEntry("good", "one").withMessageAttributes(attributes),
                new SendMessageBatchRequestEntry("bad", "\u0001")));
        print("Batch", sent.getSuccessful().get(0).getId() + " " + sent.getFailed().get(0).getCode());
        Message message = sqs.receiveMessage(new ReceiveMessageRequest(url)
                .withMessageAttributeNames("All")
                .withWaitTimeSeconds(1))
                .getMessages().get(0);
        print("SameAttributes", String.valueOf(message.getMessageAttributes().equals(attributes)));
        ChangeMessageVisibilityBatchResult changed = sqs.changeMessageVisibilityBatch(url, List.of(
                new ChangeMessageVisibilityBatchRequestEntry("a", message.getReceiptHandle())
                        .withVisibilityTimeout(0)));
        print("Changed", changed.getSuccessful().get(0).getId());
        sqs.deleteMessage(url, sqs.receiveMessage(url).getMessages().get(0).getReceiptHandle());
        print("Left", sqs.getQueueAttributes(url, List.of("All")).getAttributes()
                .get("ApproximateNumberOfMessages"));
        sqs.deleteQueue(url);
    }

    private static List<Message> receive(AmazonSQS sqs, String url) {
        return sqs.receiveMessage(new ReceiveMessageRequest(url)
                .withReceiveRequestAttemptId("1")
                .withAttributeNames("All"))
                .getMessages();
    }

    private static void print(String name, String value) {
        System.out.println(name + "=" + value);
    }
}
