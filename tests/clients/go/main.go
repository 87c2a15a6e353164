// A standard queue, a FIFO queue and an error. Prints a line of name and value for each thing seen.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"reflect"
	"sort"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

var background = context.Background()

func main() {
	client := sqs.New(sqs.Options{
		BaseEndpoint: aws.String(os.Args[1]),
		Region:       "eu-west-1",
		Credentials:  credentials.NewStaticCredentialsProvider("anybody", "nothing", ""),
	})
	url := standard(client)
	fifo(client)
	failure(client, url)
}

func print(name string, value any) {
	fmt.Printf("%s=%v\n", name, value)
}

// done ends the program if a request failed, and is its answer otherwise.
func done[T any](answer T, failed error) T {
	if failed != nil {
		log.Fatal(failed)
	}
	return answer
}

func standard(client *sqs.Client) *string {
	url := done(client.CreateQueue(background, &sqs.CreateQueueInput{
		QueueName:  aws.String("walked"),
		Attributes: map[string]string{"VisibilityTimeout": "30"},
	})).QueueUrl
	found := done(client.GetQueueUrl(background, &sqs.GetQueueUrlInput{QueueName: aws.String("walked")}))
	print("standard.SameUrl", *found.QueueUrl == *url)

	attributes := map[string]types.MessageAttributeValue{
		"kind":    {DataType: aws.String("String"), StringValue: aws.String("käse 🧀")},
		"size":    {DataType: aws.String("Number"), StringValue: aws.String("12.5")},
		"picture": {DataType: aws.String("Binary"), BinaryValue: []byte{0, 255}},
	}
	sent := done(client.SendMessage(background, &sqs.SendMessageInput{
		QueueUrl: url, MessageBody: aws.String("one <&>"), MessageAttributes: attributes,
	}))
	message := only(receive(client, url, 10))
	print("standard.Body", *message.Body)
	print("standard.SameId", *message.MessageId == *sent.MessageId)
	print("standard.SameMD5", *message.MD5OfBody == *sent.MD5OfMessageBody)
	print("standard.SameAttributesMD5", *message.MD5OfMessageAttributes == *sent.MD5OfMessageAttributes)
	print("standard.SameAttributes", reflect.DeepEqual(message.MessageAttributes, attributes))
	print("standard.ReceiveCount", message.Attributes["ApproximateReceiveCount"])

	started := time.Now()
	print("standard.WhileInvisible", len(receive(client, url, 1)))
	print("standard.Waited", time.Since(started) >= 900*time.Millisecond)
	done(client.ChangeMessageVisibility(background, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: url, ReceiptHandle: message.ReceiptHandle, VisibilityTimeout: 1,
	}))
	started = time.Now()
	again := only(receive(client, url, 20))
	print("standard.Woken", time.Since(started) < 15*time.Second)
	print("standard.ReceivedAgain", again.Attributes["ApproximateReceiveCount"])
	done(client.DeleteMessage(background, &sqs.DeleteMessageInput{QueueUrl: url, ReceiptHandle: again.ReceiptHandle}))

	batch := done(client.SendMessageBatch(background, &sqs.SendMessageBatchInput{
		QueueUrl: url,
		Entries: []types.SendMessageBatchRequestEntry{
			{Id: aws.String("a"), MessageBody: aws.String("two")},
			{Id: aws.String("b"), MessageBody: aws.String("three")},
			{Id: aws.String("bad"), MessageBody: aws.String("\u0001")},
		},
	}))
	var ids []string
	for _, entry := range batch.Successful {
		ids = append(ids, *entry.Id)
	}
	print("standard.Sent", strings.Join(ids, " "))
	for _, entry := range batch.Failed {
		print("standard.NotSent", refusal(entry))
	}
	var messages []types.Message
	for len(messages) < 2 {
		messages = append(messages, receive(client, url, 10)...)
	}
	sort.Slice(messages, func(one, other int) bool { return *messages[one].Body > *messages[other].Body })
	print("standard.Bodies", bodies(messages))
	remove(client, url, "standard", append(messages, types.Message{ReceiptHandle: aws.String("garbage")}))

	done(client.SetQueueAttributes(background, &sqs.SetQueueAttributesInput{
		QueueUrl: url, Attributes: map[string]string{"VisibilityTimeout": "45"},
	}))
	all := done(client.GetQueueAttributes(background, &sqs.GetQueueAttributesInput{
		QueueUrl: url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})).Attributes
	print("standard.VisibilityTimeout", all["VisibilityTimeout"])
	print("standard.Visible", all["ApproximateNumberOfMessages"])
	print("standard.InFlight", all["ApproximateNumberOfMessagesNotVisible"])
	done(client.DeleteQueue(background, &sqs.DeleteQueueInput{QueueUrl: url}))
	return url
}

func fifo(client *sqs.Client) {
	url := done(client.CreateQueue(background, &sqs.CreateQueueInput{
		QueueName:  aws.String("walked.fifo"),
		Attributes: map[string]string{"FifoQueue": "true", "ContentBasedDeduplication": "true"},
	})).QueueUrl
	var sent []*sqs.SendMessageOutput
	for range 2 {
		sent = append(sent, done(client.SendMessage(background, &sqs.SendMessageInput{
			QueueUrl: url, MessageBody: aws.String("one"), MessageGroupId: aws.String("g"),
		})))
	}
	print("fifo.SentOnce", *sent[0].MessageId == *sent[1].MessageId)
	var entries []types.SendMessageBatchRequestEntry
	for _, body := range []string{"two", "three"} {
		entries = append(entries, types.SendMessageBatchRequestEntry{
			Id: aws.String(body), MessageBody: aws.String(body), MessageGroupId: aws.String("g"),
		})
	}
	done(client.SendMessageBatch(background, &sqs.SendMessageBatchInput{QueueUrl: url, Entries: entries}))

	messages := receive(client, url, 10)
	print("fifo.Bodies", bodies(messages))
	print("fifo.Group", messages[0].Attributes["MessageGroupId"])
	var numbers []string
	for _, message := range messages {
		numbers = append(numbers, message.Attributes["SequenceNumber"])
	}
	print("fifo.SameNumber", *sent[0].SequenceNumber == numbers[0])
	print("fifo.Ascending", sort.StringsAreSorted(numbers))
	print("fifo.WhileLocked", len(receive(client, url, 0)))
	remove(client, url, "fifo", messages)
	done(client.DeleteQueue(background, &sqs.DeleteQueueInput{QueueUrl: url}))
	print("fifo.Left", len(done(client.ListQueues(background, &sqs.ListQueuesInput{})).QueueUrls))
}

func failure(client *sqs.Client, url *string) {
	_, failed := client.SendMessage(background, &sqs.SendMessageInput{QueueUrl: url, MessageBody: aws.String("late")})
	var answer *awshttp.ResponseError
	var refused *types.QueueDoesNotExist
	if !errors.As(failed, &answer) {
		log.Fatal(failed)
	}
	print("error.Status", answer.HTTPStatusCode())
	print("error.QueueDoesNotExist", errors.As(failed, &refused))
	print("error.Code", refused.ErrorCode())
	print("error.Message", refused.ErrorMessage())
	print("error.RequestId", len(answer.ServiceRequestID()))
}

func receive(client *sqs.Client, url *string, wait int32) []types.Message {
	return done(client.ReceiveMessage(background, &sqs.ReceiveMessageInput{
		QueueUrl:                    url,
		MaxNumberOfMessages:         10,
		WaitTimeSeconds:             wait,
		MessageAttributeNames:       []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	})).Messages
}

func remove(client *sqs.Client, url *string, part string, messages []types.Message) {
	var entries []types.DeleteMessageBatchRequestEntry
	for n, message := range messages {
		entries = append(entries, types.DeleteMessageBatchRequestEntry{
			Id: aws.String(fmt.Sprintf("n%d", n)), ReceiptHandle: message.ReceiptHandle,
		})
	}
	batch := done(client.DeleteMessageBatch(background, &sqs.DeleteMessageBatchInput{
		QueueUrl: url, Entries: entries,
	}))
	var ids []string
	for _, entry := range batch.Successful {
		ids = append(ids, *entry.Id)
	}
	print(part+".Deleted", strings.Join(ids, " "))
	for _, entry := range batch.Failed {
		print(part+".NotDeleted", refusal(entry))
	}
}

func refusal(entry types.BatchResultErrorEntry) string {
	return fmt.Sprint(*entry.Id, " ", *entry.Code, " ", entry.SenderFault)
}

func only(messages []types.Message) types.Message {
	if len(messages) != 1 {
		log.Fatal(len(messages), " messages instead of one")
	}
	return messages[0]
}

func bodies(messages []types.Message) string {
	var all []string
	for _, message := range messages {
		all = append(all, *message.Body)
	}
	return strings.Join(all, " ")
}
