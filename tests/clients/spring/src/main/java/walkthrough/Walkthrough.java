package walkthrough;

import io.awspring.cloud.sqs.annotation.SqsListener;
import io.awspring.cloud.sqs.listener.MessageListenerContainerRegistry;
import io.awspring.cloud.sqs.listener.SqsHeaders;
import io.awspring.cloud.sqs.listener.SqsHeaders.MessageSystemAttributes;
import io.awspring.cloud.sqs.listener.Visibility;
import io.awspring.cloud.sqs.listener.acknowledgement.Acknowledgement;
import io.awspring.cloud.sqs.listener.errorhandler.AsyncErrorHandler;
import io.awspring.cloud.sqs.listener.errorhandler.ImmediateRetryAsyncErrorHandler;
import io.awspring.cloud.sqs.operations.SendBatchOperationFailedException;
import io.awspring.cloud.sqs.operations.SendResult;
import io.awspring.cloud.sqs.operations.SqsTemplate;
import io.awspring.cloud.sqs.operations.SqsTemplateParameters;
import io.awspring.cloud.sqs.operations.TemplateAcknowledgementMode;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.messaging.Message;
import org.springframework.messaging.handler.annotation.Header;
import org.springframework.messaging.support.MessageBuilder;
import software.amazon.awssdk.services.sqs.SqsAsyncClient;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueDoesNotExistException;

/** An application with a template and listeners: everything is printed as a line of name and value. */
@SpringBootConfiguration
@EnableAutoConfiguration
public class Walkthrough {
    private static final String PLAIN = "walked";
    private static final String HEARD = "heard";
    private static final String FIFO = "walked.fifo";

    private final ConcurrentLinkedQueue<String> heard = new ConcurrentLinkedQueue<>();
    private final ConcurrentLinkedQueue<String> ordered = new ConcurrentLinkedQueue<>();

    public static void main(String[] arguments) throws Exception {
        SpringApplication application = new SpringApplication(Walkthrough.class);
        application.setDefaultProperties(Map.of(
                "logging.level.root", "off",
                "spring.main.banner-mode", "off",
                "spring.cloud.aws.credentials.access-key", "anybody",
                "spring.cloud.aws.credentials.secret-key", "nothing",
                "spring.cloud.aws.region.static", "eu-west-1",
                "spring.cloud.aws.sqs.endpoint", arguments[0]));
        try (ConfigurableApplicationContext context = application.run()) {
            context.getBean(Walkthrough.class).walk(
                    context.getBean(SqsAsyncClient.class),
                    context.getBean(SqsTemplate.class),
                    context.getBean(MessageListenerContainerRegistry.class));
        }
    }

    /** Spring's own one would acknowledge all that it receives. */
    @Bean
    public SqsTemplate template(SqsAsyncClient sqs) {
        return SqsTemplate.builder()
                .sqsAsyncClient(sqs)
                .configure(options -> options.acknowledgementMode(TemplateAcknowledgementMode.MANUAL))
                .build();
    }

    @Bean
    public AsyncErrorHandler<Object> again() {
        return new ImmediateRetryAsyncErrorHandler<>();
    }

    @SqsListener(queueNames = HEARD, pollTimeoutSeconds = "2")
    public void hear(String body, @Header(MessageSystemAttributes.SQS_APPROXIMATE_RECEIVE_COUNT) String count) {
        if (body.equals("fails once") && count.equals("1")) {
            throw new IllegalStateException("once");
        }
        heard.add(body + " " + count);
    }

    @SqsListener(queueNames = FIFO, pollTimeoutSeconds = "2")
    public void follow(String body, @Header(MessageSystemAttributes.SQS_MESSAGE_GROUP_ID_HEADER) String group) {
        ordered.add(group + " " + body);
    }

    private void walk(SqsAsyncClient sqs, SqsTemplate template, MessageListenerContainerRegistry listeners)
            throws InterruptedException {
        template(template); // Spring creates a queue that it does not find
        print("template.Left", left(sqs, PLAIN));

        template.sendMany(HEARD, messages("one", "two", "fails once"));
        sendInOrder(template);
        while (left(sqs, HEARD) + left(sqs, FIFO) > 0) {
            Thread.sleep(50);
        }
        listeners.stop();
        print("listener.Heard", heard.stream().sorted().collect(Collectors.joining(", ")));
        print("fifo.Heard", String.join(", ", ordered));

        print("queues.Urls", sqs.listQueues().join().queueUrls().size());
        for (String name : List.of(PLAIN, HEARD, FIFO)) {
            String url = url(sqs, name);
            sqs.deleteQueue(request -> request.queueUrl(url)).join();
        }
        print("queues.Left", sqs.listQueues().join().queueUrls().size());
        refusal(template);
    }

    private static void template(SqsTemplate template) {
        SendResult<String> sent = template.send(to -> to
                .queue(PLAIN)
                .payload("one <&>")
                .header("kind", "k\u00e4se \ud83e\uddc0")
                .header("size", 12));
        Message<String> message = receive(template);
        print("template.Body", message.getPayload());
        print("template.SameId", sent.messageId().equals(message.getHeaders().getId()));
        print("template.Kind", message.getHeaders().get("kind"));
        print("template.Size", message.getHeaders().get("size"));

        message.getHeaders().get(SqsHeaders.SQS_VISIBILITY_TIMEOUT_HEADER, Visibility.class).changeTo(1);
        Instant started = Instant.now();
        Message<String> again = receive(template);
        print("template.Woken", Duration.between(started, Instant.now()).toSeconds() < 15);
        print("template.ReceivedAgain",
                again.getHeaders().get(MessageSystemAttributes.SQS_APPROXIMATE_RECEIVE_COUNT));
        Acknowledgement.acknowledge(again);

        try {
            template.sendMany(PLAIN, messages("two", "three", "\u0001"));
        } catch (SendBatchOperationFailedException failed) {
            SendResult.Batch<String> batch = failed.getSendBatchResult(String.class);
            print("template.Sent", batch.successful().size());
            for (SendResult.Failed<String> refused : batch.failed()) {
                print("template.NotSent", refused.errorMessage());
            }
        }
        List<Message<String>> received = new ArrayList<>();
        while (received.size() < 2) {
            received.addAll(template.receiveMany(
                    from -> from.queue(PLAIN).pollTimeout(Duration.ofSeconds(20)).maxNumberOfMessages(10),
                    String.class));
        }
        print("template.Received", received.stream().map(Message::getPayload).sorted().toList());
        Acknowledgement.acknowledge(received);
    }

    private static void sendInOrder(SqsTemplate template) {
        List<Object> numbers = new ArrayList<>();
        for (String body : List.of("one", "one", "two", "three")) {
            numbers.add(template.send(to -> to
                    .queue(FIFO)
                    .payload(body)
                    .messageGroupId("g")
                    .messageDeduplicationId(body))
                    .additionalInformation()
                    .get(SqsTemplateParameters.SEQUENCE_NUMBER_PARAMETER_NAME));
        }
        print("fifo.SentOnce", numbers.get(0).equals(numbers.get(1)));
        print("fifo.Numbers", numbers.stream().distinct().count());
    }

    private static void refusal(SqsTemplate template) {
        try {
            template.send(PLAIN, "late");
        } catch (RuntimeException failed) {
            Throwable cause = failed;
            while (!(cause instanceof QueueDoesNotExistException) && cause.getCause() != null) {
                cause = cause.getCause();
            }
            print("error.Class", cause.getClass().getSimpleName());
            print("error.Message", ((QueueDoesNotExistException) cause).awsErrorDetails().errorMessage());
        }
    }

    private static String url(SqsAsyncClient sqs, String name) {
        return sqs.getQueueUrl(request -> request.queueName(name)).join().queueUrl();
    }

    private static Message<String> receive(SqsTemplate template) {
        return template.receive(from -> from.queue(PLAIN).pollTimeout(Duration.ofSeconds(20)), String.class)
                .orElseThrow();
    }

    /** How many messages a queue has, waiting or in flight. */
    private static int left(SqsAsyncClient sqs, String name) {
        Map<QueueAttributeName, String> all = sqs.getQueueAttributes(request -> request
                .queueUrl(url(sqs, name))
                .attributeNames(QueueAttributeName.ALL))
                .join()
                .attributes();
        return Integer.parseInt(all.get(QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES))
                + Integer.parseInt(all.get(QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES_NOT_VISIBLE));
    }

    private static List<Message<String>> messages(String... bodies) {
        return Stream.of(bodies).map(body -> MessageBuilder.withPayload(body).build()).toList();
    }

    private static void print(String name, Object value) {
        System.out.println(name + "=" + value);
    }
}
