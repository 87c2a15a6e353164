"""The error tree: the table of service errors, their fields, and the way through pickle."""

import pickle
import uuid

import pytest

from lakequeue import errors
from lakequeue.errors import (
    SERVICE_ERRORS,
    DamagedTable,
    InvalidOptions,
    LakeQueueError,
    LeaseLost,
    QueueClientError,
    QueueDoesNotExist,
    QueueServiceError,
    coded_for,
)
from lakequeue.model.messages import BatchFailure
from lakequeue.runtime.group_commit import _interrupted
from lakequeue.serve.errors import ErrorResponse
from lakequeue.storage.messages.staged_sends import unknown

AWS = "AWS.SimpleQueueService."
TABLE = {
    "QueueDoesNotExist": (AWS + "NonExistentQueue", 400),
    "QueueNameExists": ("QueueAlreadyExists", 400),
    "QueueDeletedRecently": (AWS + "QueueDeletedRecently", 400),
    "ReceiptHandleIsInvalid": ("ReceiptHandleIsInvalid", 404),
    "MessageNotInflight": (AWS + "MessageNotInflight", 400),
    "OverLimit": ("OverLimit", 403),
    "TooManyEntriesInBatchRequest": (AWS + "TooManyEntriesInBatchRequest", 400),
    "EmptyBatchRequest": (AWS + "EmptyBatchRequest", 400),
    "BatchEntryIdsNotDistinct": (AWS + "BatchEntryIdsNotDistinct", 400),
    "InvalidBatchEntryId": (AWS + "InvalidBatchEntryId", 400),
    "BatchRequestTooLong": (AWS + "BatchRequestTooLong", 400),
    "InvalidMessageContents": ("InvalidMessageContents", 400),
    "InvalidAttributeName": ("InvalidAttributeName", 400),
    "InvalidAttributeValue": ("InvalidAttributeValue", 400),
    "InvalidParameterValue": ("InvalidParameterValue", 400),
    "MissingParameter": ("MissingParameter", 400),
    "PurgeQueueInProgress": (AWS + "PurgeQueueInProgress", 403),
    "UnsupportedOperation": (AWS + "UnsupportedOperation", 400),
    "RequestThrottled": ("RequestThrottled", 403),
    "ResourceNotFoundException": ("ResourceNotFoundException", 404),
}


@pytest.mark.spec("ERR-6")
def test_every_code_of_the_table_has_a_class_and_no_class_is_missing_there():
    assert set(SERVICE_ERRORS) == set(TABLE)


@pytest.mark.spec("ERR-1", "ERR-6")
@pytest.mark.parametrize("code", TABLE)
def test_a_service_error_carries_its_five_fields(code):
    legacy_code, status = TABLE[code]
    error = SERVICE_ERRORS[code]("why")
    assert type(error).__name__ == error.code == code
    assert getattr(errors, code) is type(error)
    assert (error.message, str(error)) == ("why", "why")
    assert (error.legacy_code, error.http_status, error.sender_fault) == (legacy_code, status, True)
    assert uuid.UUID(error.request_id)
    assert error.request_id != SERVICE_ERRORS[code]("why").request_id


@pytest.mark.spec("ERR-1")
@pytest.mark.parametrize("code", TABLE)
def test_service_errors_survive_pickling(code):
    error = SERVICE_ERRORS[code]("why", sender_fault=False, http_status=418, cmq_code=7)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == "why"


@pytest.mark.spec("ERR-6")
def test_errors_speak_without_being_given_a_text():
    assert QueueDoesNotExist().message == "The specified queue does not exist."
    assert all(error().message for error in SERVICE_ERRORS.values())


@pytest.mark.spec("ERR-2")
def test_a_client_error_is_no_service_error_and_has_a_message():
    error = QueueClientError("no storage", outcome_unknown=True)
    assert isinstance(error, LakeQueueError)
    assert not isinstance(error, QueueServiceError)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.message, copy.outcome_unknown, str(copy)) == ("no storage", True, "no storage")
    assert QueueClientError("x").outcome_unknown is False
    damaged = DamagedTable("table", "file", "is torn")
    damaged.outcome_unknown = True
    assert vars(pickle.loads(pickle.dumps(damaged))) == vars(damaged)


@pytest.mark.spec("ERR-2")
def test_an_unknown_outcome_says_that_a_send_without_an_id_may_be_stored_twice():
    found = [_interrupted(), unknown("no answer")]
    for error in found:
        assert error.outcome_unknown
        for text in (error.message, BatchFailure.of("0", error).message, ErrorResponse.of(error).message):
            assert "except a send without an id" in text


@pytest.mark.spec("HBN-17")
def test_invalid_options_names_all_problems():
    copy = pickle.loads(pickle.dumps(InvalidOptions(["a < 0", "b < a"])))
    assert copy.problems == ["a < 0", "b < a"]
    assert str(copy) == "a < 0; b < a"


def test_the_error_of_a_lost_lease_has_its_counts():
    copy = pickle.loads(pickle.dumps(LeaseLost(done=0, lost=7)))
    assert (copy.done, copy.lost) == (0, 7)
    assert "7 lost" in str(copy)


@pytest.mark.spec("ERR-7")
@pytest.mark.parametrize(
    ("profile", "code", "number"),
    [
        ("cmq", "QueueDoesNotExist", 4440),
        ("cmq", "QueueNameExists", 4460),
        ("cmq", "InvalidAttributeValue", 4000),
        ("cmq", "InvalidParameterValue", 4000),
        ("cmq", "OverLimit", None),
        ("lake", "QueueDoesNotExist", None),
        ("sqs", "InvalidParameterValue", None),
    ],
)
def test_cmq_numbers_are_added_on_cmq_queues_only(profile, code, number):
    with pytest.raises(SERVICE_ERRORS[code]) as caught, coded_for(profile):
        raise SERVICE_ERRORS[code]()
    assert caught.value.cmq_code == number


@pytest.mark.spec("ERR-7")
def test_a_number_given_at_the_place_of_the_error_wins():
    with pytest.raises(errors.InvalidParameterValue) as caught, coded_for("cmq"):
        raise errors.InvalidParameterValue(cmq_code=10680)
    assert caught.value.cmq_code == 10680
