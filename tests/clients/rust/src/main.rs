//! A standard queue, a FIFO queue and an error. Prints a line of name and value for each thing seen.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Display;
use std::time::{Duration, Instant};

use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_sqs::error::ProvideErrorMetadata;
use aws_sdk_sqs::operation::RequestId;
use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, DeleteMessageBatchRequestEntry, Message, MessageAttributeValue,
    MessageSystemAttributeName, QueueAttributeName, SendMessageBatchRequestEntry,
};
use aws_sdk_sqs::{Client, Config};
use aws_smithy_http_client::Builder;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let endpoint = std::env::args().nth(1).ok_or("which server?")?;
    let sqs = Client::from_conf(
        Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(Builder::new().build_http())
            .endpoint_url(endpoint)
            .region(Region::new("eu-west-1"))
            .credentials_provider(Credentials::new(
                "anybody",
                "nothing",
                None,
                None,
                "walkthrough",
            ))
            .build(),
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let url = standard(&sqs).await?;
        fifo(&sqs).await?;
        error(&sqs, &url).await
    })
}

fn print(name: &str, value: impl Display) {
    println!("{name}={value}");
}

async fn standard(sqs: &Client) -> Outcome<String> {
    let created = sqs
        .create_queue()
        .queue_name("walked")
        .attributes(QueueAttributeName::VisibilityTimeout, "30")
        .send()
        .await?;
    let url = created.queue_url.unwrap();
    let found = sqs.get_queue_url().queue_name("walked").send().await?;
    print("standard.SameUrl", found.queue_url() == Some(&url));

    let kind = MessageAttributeValue::builder()
        .data_type("String")
        .string_value("käse 🧀");
    let size = MessageAttributeValue::builder()
        .data_type("Number")
        .string_value("12.5");
    let picture = MessageAttributeValue::builder()
        .data_type("Binary")
        .binary_value(Blob::new([0, 255]));
    let attributes = HashMap::from([
        ("kind".to_string(), kind.build()?),
        ("size".to_string(), size.build()?),
        ("picture".to_string(), picture.build()?),
    ]);
    let sent = sqs
        .send_message()
        .queue_url(&url)
        .message_body("one <&>")
        .set_message_attributes(Some(attributes.clone()))
        .send()
        .await?;
    let message = only(receive(sqs, &url, 10).await?);
    print("standard.Body", message.body().unwrap());
    print("standard.SameId", message.message_id == sent.message_id);
    print(
        "standard.SameMD5",
        message.md5_of_body == sent.md5_of_message_body,
    );
    print(
        "standard.SameAttributesMD5",
        message.md5_of_message_attributes.is_some()
            && message.md5_of_message_attributes == sent.md5_of_message_attributes,
    );
    print(
        "standard.SameAttributes",
        message.message_attributes == Some(attributes),
    );
    print(
        "standard.ReceiveCount",
        system(
            &message,
            MessageSystemAttributeName::ApproximateReceiveCount,
        ),
    );

    let started = Instant::now();
    print(
        "standard.WhileInvisible",
        receive(sqs, &url, 1).await?.len(),
    );
    print(
        "standard.Waited",
        started.elapsed() >= Duration::from_millis(900),
    );
    sqs.change_message_visibility()
        .queue_url(&url)
        .receipt_handle(message.receipt_handle().unwrap())
        .visibility_timeout(1)
        .send()
        .await?;
    let started = Instant::now();
    let again = only(receive(sqs, &url, 20).await?);
    print(
        "standard.Woken",
        started.elapsed() < Duration::from_secs(15),
    );
    print(
        "standard.ReceivedAgain",
        system(&again, MessageSystemAttributeName::ApproximateReceiveCount),
    );
    sqs.delete_message()
        .queue_url(&url)
        .receipt_handle(again.receipt_handle().unwrap())
        .send()
        .await?;

    let mut batch = sqs.send_message_batch().queue_url(&url);
    for (id, body) in [("a", "two"), ("b", "three"), ("bad", "\u{1}")] {
        batch = batch.entries(
            SendMessageBatchRequestEntry::builder()
                .id(id)
                .message_body(body)
                .build()?,
        );
    }
    let batch = batch.send().await?;
    print(
        "standard.Sent",
        joined(
            batch
                .successful()
                .iter()
                .map(|entry| entry.id().to_string()),
        ),
    );
    for failed in batch.failed() {
        print("standard.NotSent", refusal(failed));
    }
    let mut messages = Vec::new();
    while messages.len() < 2 {
        messages.extend(receive(sqs, &url, 10).await?);
    }
    messages.sort_by(|one, other| other.body.cmp(&one.body));
    print("standard.Bodies", bodies(&messages));
    delete(sqs, &url, "standard", &messages, Some("garbage")).await?;

    sqs.set_queue_attributes()
        .queue_url(&url)
        .attributes(QueueAttributeName::VisibilityTimeout, "45")
        .send()
        .await?;
    let all = sqs
        .get_queue_attributes()
        .queue_url(&url)
        .attribute_names(QueueAttributeName::All)
        .send()
        .await?;
    let all = all.attributes().unwrap();
    print(
        "standard.VisibilityTimeout",
        &all[&QueueAttributeName::VisibilityTimeout],
    );
    print(
        "standard.Visible",
        &all[&QueueAttributeName::ApproximateNumberOfMessages],
    );
    print(
        "standard.InFlight",
        &all[&QueueAttributeName::ApproximateNumberOfMessagesNotVisible],
    );
    sqs.delete_queue().queue_url(&url).send().await?;
    Ok(url)
}

async fn fifo(sqs: &Client) -> Outcome<()> {
    let created = sqs
        .create_queue()
        .queue_name("walked.fifo")
        .attributes(QueueAttributeName::FifoQueue, "true")
        .attributes(QueueAttributeName::ContentBasedDeduplication, "true")
        .send()
        .await?;
    let url = created.queue_url.unwrap();
    let mut sent = Vec::new();
    for _ in 0..2 {
        sent.push(
            sqs.send_message()
                .queue_url(&url)
                .message_body("one")
                .message_group_id("g")
                .send()
                .await?,
        );
    }
    print(
        "fifo.SentOnce",
        sent[0].message_id.is_some() && sent[0].message_id == sent[1].message_id,
    );
    let mut batch = sqs.send_message_batch().queue_url(&url);
    for body in ["two", "three"] {
        let entry = SendMessageBatchRequestEntry::builder()
            .id(body)
            .message_body(body)
            .message_group_id("g");
        batch = batch.entries(entry.build()?);
    }
    batch.send().await?;

    let messages = receive(sqs, &url, 10).await?;
    print("fifo.Bodies", bodies(&messages));
    print(
        "fifo.Group",
        system(&messages[0], MessageSystemAttributeName::MessageGroupId),
    );
    let numbers: Vec<_> = messages
        .iter()
        .map(|message| system(message, MessageSystemAttributeName::SequenceNumber))
        .collect();
    print(
        "fifo.SameNumber",
        sent[0].sequence_number == Some(numbers[0].clone()),
    );
    print(
        "fifo.Ascending",
        numbers.windows(2).all(|pair| pair[0] < pair[1]),
    );
    print("fifo.WhileLocked", receive(sqs, &url, 0).await?.len());
    delete(sqs, &url, "fifo", &messages, None).await?;
    sqs.delete_queue().queue_url(&url).send().await?;
    print(
        "fifo.Left",
        sqs.list_queues().send().await?.queue_urls().len(),
    );
    Ok(())
}

async fn error(sqs: &Client, url: &str) -> Outcome<()> {
    let failed = sqs
        .send_message()
        .queue_url(url)
        .message_body("late")
        .send()
        .await
        .unwrap_err();
    print(
        "error.Status",
        failed.raw_response().unwrap().status().as_u16(),
    );
    let refused = failed.into_service_error();
    print("error.QueueDoesNotExist", refused.is_queue_does_not_exist());
    print("error.Code", refused.code().unwrap());
    print("error.Message", refused.message().unwrap());
    print(
        "error.RequestId",
        refused.meta().request_id().unwrap().len(),
    );
    Ok(())
}

async fn receive(sqs: &Client, url: &str, wait: i32) -> Outcome<Vec<Message>> {
    let received = sqs
        .receive_message()
        .queue_url(url)
        .max_number_of_messages(10)
        .wait_time_seconds(wait)
        .message_attribute_names("All")
        .message_system_attribute_names(MessageSystemAttributeName::All)
        .send()
        .await?;
    Ok(received.messages.unwrap_or_default())
}

async fn delete(
    sqs: &Client,
    url: &str,
    part: &str,
    messages: &[Message],
    wrong: Option<&str>,
) -> Outcome<()> {
    let mut batch = sqs.delete_message_batch().queue_url(url);
    let handles = messages
        .iter()
        .map(|message| message.receipt_handle().unwrap())
        .chain(wrong);
    for (n, handle) in handles.enumerate() {
        let entry = DeleteMessageBatchRequestEntry::builder()
            .id(format!("n{n}"))
            .receipt_handle(handle);
        batch = batch.entries(entry.build()?);
    }
    let batch = batch.send().await?;
    print(
        &format!("{part}.Deleted"),
        joined(
            batch
                .successful()
                .iter()
                .map(|entry| entry.id().to_string()),
        ),
    );
    for failed in batch.failed() {
        print(&format!("{part}.NotDeleted"), refusal(failed));
    }
    Ok(())
}

fn refusal(entry: &BatchResultErrorEntry) -> String {
    format!("{} {} {}", entry.id(), entry.code(), entry.sender_fault())
}

fn only(mut messages: Vec<Message>) -> Message {
    assert_eq!(messages.len(), 1);
    messages.remove(0)
}

fn system(message: &Message, name: MessageSystemAttributeName) -> String {
    message
        .attributes()
        .and_then(|all| all.get(&name))
        .cloned()
        .unwrap_or_default()
}

fn bodies(messages: &[Message]) -> String {
    joined(
        messages
            .iter()
            .map(|message| message.body().unwrap().to_string()),
    )
}

fn joined(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(" ")
}
