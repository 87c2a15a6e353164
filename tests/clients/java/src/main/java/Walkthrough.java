import java.net.URI;
import java.util.List;
import java.util.Map;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.core.exception.SdkClientException;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.DeleteMessageBatchResponse;
import software.amazon.awssdk.services.sqs.model.Message;
import software.amazon.awssdk.services.sqs.model.MessageSystemAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;
import software.amazon.awssdk.services.sqs.model.SendMessageResponse;
import software.amazon.awssdk.services.sqs.model.SqsException;

/** The walkthrough of a FIFO queue (EXM-1): everything is printed as a line of name and value. */
public final class Walkthrough {
    public static void main(String[] arguments) {
        try (SqsClient sqs = SqsClient.builder()
                .endpointOverride(URI.create(arguments[0]))
                .region(Region.EU_WEST_1)
                .credentialsProvider(StaticCredentialsProvider.create(
                        AwsBasicCredentials.create("anybody", "nothing")))
                .build()) {
            walk(sqs);
        } catch (SdkClientException unreachable) {
            print("Unreachable", unreachable.getMessage());
            throw unreachable;
        }
    }

    private static void walk(SqsClient sqs) {
        String url = sqs.createQueue(request -> request
                .queueName("MyFifoQueue.fifo")
                .attributes(Map.of(
                        QueueAttributeName.FIFO_QUEUE, "true",
                        QueueAttributeName.CONTENT_BASED_DEDUPLICATION, "true")))
                .queueUrl();
        for (String listed : sqs.listQueues().queueUrls()) {
            print("QueueUrl", listed);
        }

        for (int attempt = 0; attempt < 2; attempt++) {
            SendMessageResponse sent = sqs.sendMessage(request -> request
                    .queueUrl(url)
                    .messageBody("This is my message text.")
                    .messageGroupId("messageGroup1")
                    .messageDeduplicationId("1"));
            print("Sent.MessageId", sent.messageId());
            print("Sent.SequenceNumber", sent.sequenceNumber());
        }

        List<Message> messages = receive(sqs, url);
        for (Message message : messages) {
            print("MessageId", message.messageId());
            print("ReceiptHandle", message.receiptHandle());
            print("MD5OfBody", message.md5OfBody());
            print("Body", message.body());
            message.attributesAsStrings().forEach((name, value) -> print("Attribute." + name, value));
        }
        print("SameReceiptHandle", receive(sqs, url).get(0).receiptHandle());

        DeleteMessageBatchResponse deleted = sqs.deleteMessageBatch(request -> request
                .queueUrl(url)
                .entries(entry -> entry.id("1").receiptHandle(messages.get(0).receiptHandle())));
        print("Deleted", deleted.hasSuccessful() + " " + deleted.hasFailed());
        sqs.deleteMessage(request -> request.queueUrl(url).receiptHandle(messages.get(0).receiptHandle()));
        sqs.deleteQueue(request -> request.queueUrl(url));

        try {
            sqs.sendMessage(request -> request.queueUrl(url).messageBody("late").messageGroupId("messageGroup1"));
        } catch (SqsException refused) {
            print("Error.Class", refused.getClass().getSimpleName());
            print("Error.Message", refused.awsErrorDetails().errorMessage());
            print("Error.HttpStatus", String.valueOf(refused.statusCode()));
            print("Error.Code", refused.awsErrorDetails().errorCode());
            print("Error.Type", refused.awsErrorDetails().sdkHttpResponse()
                    .firstMatchingHeader("x-amzn-query-error").orElse("none").split(";")[1]);
            print("Error.RequestId", refused.requestId());
        }
    }

    private static List<Message> receive(SqsClient sqs, String url) {
        return sqs.receiveMessage(request -> request
                .queueUrl(url)
                .receiveRequestAttemptId("1")
                .messageSystemAttributeNames(MessageSystemAttributeName.ALL))
                .messages();
    }

    private static void print(String name, String value) {
        System.out.println(name + "=" + value);
    }
}
