"""Signature Version 4: what botocore signs is let in, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import attrs
import pytest
from botocore.auth import SIGV4_TIMESTAMP, SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from lakequeue.serve.auth import RequestHead
from lakequeue.serve.errors import RequestError
from lakequeue.serve.keys import Key, Keys
from lakequeue.serve.signature import WINDOW, Signature

ID, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
BODY = b'{"QueueUrl": "http://localhost:9324/000000000000/orders", "MessageBody": "\xc3\xa9"}'
TARGET = "AmazonSQS.SendMessage"


@attrs.frozen
class Sent(RequestHead):
    """A request with its body, which is judged after the head."""

    body: bytes


def signed(
    body: bytes = BODY,
    url: str = "http://localhost:9324/",
    region: str = "eu-west-1",
    service: str = "sqs",
    secret: str = SECRET,
    id: str = ID,
    **headers: str,
) -> Sent:
    """A request that botocore has signed, as it arrives."""
    given = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": TARGET, "User-Agent": "test"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    asked = AWSRequest("POST", url, given, body)
    SigV4Auth(Credentials(id, secret), service, region).add_auth(asked)
    parts = urlsplit(url)
    arrived = {name.lower(): value for name, value in asked.headers.items()} | {"host": parts.netloc}
    return Sent("POST", parts.path or "/", parts.query, arrived, body)


def signed_at(request: Sent) -> datetime:
    found = datetime.strptime(request.headers["x-amz-date"], SIGV4_TIMESTAMP)
    return found.replace(tzinfo=timezone.utc)


def caller(request: Sent, now: datetime) -> str:
    return Keys({ID: Key(ID, SECRET)}).check_head(request, now).verify(request.body).name


def refusal(request: Sent, now: datetime | None = None) -> RequestError:
    with pytest.raises(RequestError) as caught:
        caller(request, now or datetime.now(timezone.utc))
    assert SECRET not in caught.value.message
    return caught.value


def let_in(request: Sent) -> bool:
    return caller(request, signed_at(request)) == ID


def with_headers(request: Sent, **changed: str | None) -> Sent:
    headers = dict(request.headers) | {name.replace("_", "-"): value for name, value in changed.items()}
    return attrs.evolve(request, headers={name: value for name, value in headers.items() if value is not None})


def with_authorization(request: Sent, old: str, new: str) -> Sent:
    text = request.headers["authorization"]
    assert old in text
    return with_headers(request, authorization=text.replace(old, new))


SIGNED = [
    *({"url": f"http://{place}"} for place in (
        *("localhost:9324", "localhost:9324/000000000000/orders", "localhost:9324//000000000000//orders"),
        *("localhost:9324/a%20b/%C3%A9/~x/it's", "localhost:9324/a/../b/./c/", "localhost:9324/?flag"),
        *("localhost:9324/?b=2&a=1&a=0&c=%20%2F", "[::1]:9324/", "queue.example/"),
    )),
    *({"body": body} for body in (b"", b"{}", b"\x00\xff" * 100_000)),
    *({"region": region} for region in ("us-east-1", "local", "moon")),
    {"X_Amz_Meta": "  a   b  "},  # spaces count once
]  # fmt: skip


@pytest.mark.parametrize("given", SIGNED, ids=range(len(SIGNED)))
def test_what_sdks_sign_is_let_in(given):
    assert let_in(signed(**given))


def test_a_client_may_sign_more_than_botocore_would():
    request = signed()
    names = "content-type;host;user-agent;x-amz-date;x-amz-target"
    asked = AWSRequest("POST", "http://localhost:9324/", dict(request.headers), BODY)
    del asked.headers["authorization"]
    auth = SigV4Auth(Credentials(ID, SECRET), "sqs", "eu-west-1")
    asked.context["timestamp"] = request.headers["x-amz-date"]
    canonical = auth.canonical_request(asked).split("\n")
    place = next(n for n, line in enumerate(canonical) if line.startswith("x-amz-date"))
    canonical.insert(place, "user-agent:test")
    canonical[-2] = names
    signature = auth.signature(auth.string_to_sign(asked, "\n".join(canonical)), asked)
    header = f"AWS4-HMAC-SHA256 Credential={auth.scope(asked)},SignedHeaders={names},Signature={signature}"
    assert let_in(with_headers(request, authorization=header))


def later(request: Sent) -> str:
    return (signed_at(request) + timedelta(seconds=1)).strftime(SIGV4_TIMESTAMP)


def day(request: Sent) -> str:
    return f"/{request.headers['x-amz-date'][:8]}/"


ZEROS = "0" * 64
CHANGES: dict[str, list[Callable[[Sent], Sent]]] = {
    "SignatureDoesNotMatch": [
        lambda request: attrs.evolve(request, body=BODY + b" "),
        lambda request: attrs.evolve(request, body=b""),
        lambda request: attrs.evolve(request, path="/000000000000/other"),
        lambda request: attrs.evolve(request, path="/#x"),
        lambda request: attrs.evolve(request, query="a=1"),
        lambda request: attrs.evolve(request, method="PUT"),
        lambda request: with_headers(request, host="localhost:9325"),
        lambda request: with_headers(request, x_amz_target="AmazonSQS.PurgeQueue"),
        lambda request: with_headers(request, content_type="text/plain"),
        lambda request: with_headers(request, content_type=None),
        lambda request: with_headers(request, x_amz_date=later(request)),
        lambda request: with_authorization(request, "eu-west-1", "eu-west-2"),
        lambda request: with_authorization(request, "/sqs/", "/s3/"),
        lambda request: with_authorization(request, "aws4_request", "aws5_request"),
        lambda request: with_authorization(request, day(request), "/20200101/"),
        lambda _: signed(secret="another"),
        lambda _: with_headers(signed(X_Other="1"), x_other=None),  # a header that was lost
        lambda _: signed(X_Amz_Content_SHA256=ZEROS),
    ],
    "IncompleteSignature": [
        lambda request: with_headers(request, x_amz_new="1"),
        lambda request: with_authorization(request, "content-type;host", "content-type"),
        lambda request: with_authorization(request, ";x-amz-target", ""),
        *(
            partial(with_headers, authorization=header)
            for header in (
                *("", "Bearer abc", "AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 ,,,"),
                "AWS4-HMAC-SHA256 Credential=a/b",
                "AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host",
                f"AWS4-HMAC-SHA256 Credential=a/b/c/sqs/aws4_request, SignedHeaders=host, Signature={'é' * 64}",
                f"AWS4-HMAC-SHA256 Credential=a/b/c/sqs/aws4_request, SignedHeaders=, Signature={ZEROS}",
                f"AWS4-HMAC-SHA256 Credential=////, SignedHeaders=host;x-amz-date, Signature={ZEROS}",
                f"AWS4-ECDSA-P256-SHA256 Credential=a/b/sqs/aws4_request, SignedHeaders=host, Signature={ZEROS}",
            )
        ),
        *(  # every part must be there once
            partial(with_authorization, old=f"{part}=", new=new)
            for part in ("Credential", "SignedHeaders", "Signature")
            for new in ("Other=", f"{part}=x, {part}=")
        ),
        *(
            partial(with_headers, x_amz_date=date)
            for date in (None, "", "today", "20260101", "20261301T000000Z", "20260101T000000+0100")
        ),
        *(
            lambda _, told=told: signed(X_Amz_Content_SHA256=told)
            for told in ("UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "")
        ),
    ],
    "InvalidClientTokenId": [
        lambda request: with_authorization(request, ID, ID.lower()),
        lambda _: signed(id="AKIDOTHER"),
    ],
    "MissingAuthenticationToken": [lambda request: with_headers(request, authorization=None)],
}
"""Codes, and what was changed on its way to get them."""


@pytest.mark.parametrize(
    ("code", "change"),
    [
        pytest.param(code, change, id=f"{code}-{n}")
        for code, changes in CHANGES.items()
        for n, change in enumerate(changes)
    ],
)
def test_what_was_changed_on_its_way_is_refused(code, change):
    request = signed()
    assert let_in(request)
    error = refusal(change(request))
    assert (error.code, error.status) == (code, 400 if code == "IncompleteSignature" else 403)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (signed(id="AKIDOTHER"), "InvalidClientTokenId"),
        (signed(X_Amz_Content_SHA256="UNSIGNED-PAYLOAD"), "IncompleteSignature"),
        (signed(service="s3"), "SignatureDoesNotMatch"),
    ],
)
def test_the_head_of_a_request_is_checked_before_its_body(request_, code):
    with pytest.raises(RequestError) as caught:
        Keys({ID: Key(ID, SECRET)}).check_head(request_, signed_at(request_))
    assert caught.value.code == code
    with pytest.raises(RequestError, match="Signature expired"):
        Keys({ID: Key(ID, SECRET)}).check_head(signed(), datetime.now(timezone.utc) + timedelta(minutes=16))


@pytest.mark.parametrize("minutes", [-15, 15])
def test_clocks_may_differ_by_fifteen_minutes(minutes):
    request = signed()
    now = signed_at(request) + timedelta(minutes=minutes)
    assert caller(request, now) == ID
    error = refusal(request, now + timedelta(seconds=minutes // 15))
    assert (error.code, error.status) == ("RequestExpired", 403)
    assert ("expired" in error.message) == (minutes > 0)


def test_the_pages_say_how_long_a_signature_is_valid():
    project = Path(__file__).parents[2]
    for page in (project / "SECURITY.md", project / "docs/operation/access.md"):
        text = " ".join(page.read_text().split())
        assert f"{WINDOW // timedelta(minutes=1)} minutes before" in text, page
        assert f"{2 * WINDOW // timedelta(minutes=1)} in all" in text, page


def test_the_instant_may_have_any_time_zone():
    request = signed()
    now = signed_at(request).astimezone(timezone(timedelta(hours=5)))
    assert caller(request, now) == ID


URL = "http://localhost:9324/000000000000/orders?Action=SendMessage&MessageBody=a%20b%26%2F%C3%A9"


def presigned(url: str = URL, expires: int = 60, token: str | None = None, **headers: str) -> Sent:
    """A GET by a URL that botocore has signed, as it arrives."""
    asked = AWSRequest("GET", url, {name.replace("_", "-"): value for name, value in headers.items()})
    SigV4QueryAuth(Credentials(ID, SECRET, token), "sqs", "eu-west-1", expires).add_auth(asked)
    parts = urlsplit(asked.url)
    arrived = {name.lower(): value for name, value in asked.headers.items()} | {"host": parts.netloc}
    return Sent("GET", parts.path, parts.query, arrived, b"")


def presigned_at(request: Sent) -> datetime:
    text = dict(parse_qsl(request.query))["X-Amz-Date"]
    return datetime.strptime(text, SIGV4_TIMESTAMP).replace(tzinfo=timezone.utc)


def test_a_signed_url():
    for request in (presigned(), presigned(token="a/token"), presigned(X_Amz_Other="1"), presigned(URL + "&x=")):
        assert caller(request, presigned_at(request)) == ID


ODD = [
    ("a%20b%26%2F%C3%A9", "a+b%26/%c3%a9"),
    ("a%20b%26%2F%C3%A9", "%61%20b%26%2f%C3%A9"),
    ("MessageBody", "%4dessage%42ody"),
    ("eu-west-1%2Fsqs%2F", "eu%2dwest-1/sqs%2f"),
    ("X-Amz-Signature", "X%2DAmz-Signature"),
    ("SendMessage&MessageBody=a%20b", "SendMessage&&MessageBody=a+b"),
]
"""What a client signs, and how it may travel."""


@pytest.mark.parametrize(("old", "new"), ODD)
def test_a_signed_url_may_be_escaped_in_another_way(old, new):
    request = presigned()
    assert old in request.query
    assert caller(attrs.evolve(request, query=request.query.replace(old, new)), presigned_at(request)) == ID


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ("Action=ListQueues&Prefix=a:b/c~d", "Action=ListQueues&Prefix=a%3Ab%2Fc~d"),
        ("Prefix=%7e%2d%5f%2e%41&Action=ListQueues", "Action=ListQueues&Prefix=~-_.A"),
        ("Action=ListQueues&Prefix=a+b%20c%2bd", "Action=ListQueues&Prefix=a%20b%20c%2Bd"),
        ("Action=ListQueues&Empty&None=", "Action=ListQueues&Empty=&None="),
        ("b=2&b=1&a=3&B=0", "B=0&a=3&b=1&b=2"),
        ("x=a=b&x=%3d", "x=%3D&x=a%3Db"),
        ("x=(!*')$,;@[]|", "x=%28%21%2A%27%29%24%2C%3B%40%5B%5D%7C"),
        ("x=%C3%A9\xc3\xa9", "x=%C3%A9%C3%A9"),
        ("x=%zz%", "x=%25zz%25"),
        ("x=#y", "x=%23y"),
        ("X-Amz-Signature=0&Action=ListQueues", "Action=ListQueues&X-Amz-Signature=0"),
    ],
)
def test_the_canonical_query_is_signed_however_it_travels(sent, meant):
    request = attrs.evolve(signed(url=f"http://localhost:9324/?{meant}"), query=sent)
    assert let_in(request)
    assert refusal(attrs.evolve(request, query=sent + "0")).code == "SignatureDoesNotMatch"


def test_a_signed_url_expires():
    for expires in (1, 3_600, 604_800):
        request = presigned(expires=expires)
        last = presigned_at(request) + timedelta(seconds=expires)
        assert caller(request, last) == ID
        error = refusal(request, last + timedelta(seconds=1))
        assert (error.code, error.status) == (
            "RequestExpired",
            403,
        ) and f"{expires} seconds before" in error.message
    request = presigned(expires=604_800)
    assert caller(request, presigned_at(request) - timedelta(minutes=15)) == ID
    assert refusal(request, presigned_at(request) - timedelta(minutes=16)).code == "RequestExpired"


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("MessageBody=a", "MessageBody=b", "SignatureDoesNotMatch"),
        ("Expires=60", "Expires=61", "SignatureDoesNotMatch"),
        ("eu-west-1", "eu-west-2", "SignatureDoesNotMatch"),
        ("Action=SendMessage&", "", "SignatureDoesNotMatch"),
        ("Action=", "More=1&Action=", "SignatureDoesNotMatch"),
        ("sqs%2Faws4", "s3%2Faws4", "SignatureDoesNotMatch"),
        ("Signature=", "Signature=0", "IncompleteSignature"),
        ("X-Amz-Expires=60", "X-Amz-Expires=604801", "IncompleteSignature"),
        ("X-Amz-Expires=60", "X-Amz-Expires=0", "IncompleteSignature"),
        ("X-Amz-Expires=60", "X-Amz-Expires=-1", "IncompleteSignature"),
        ("X-Amz-Expires=60", "X-Amz-Expires=%D9%A1", "IncompleteSignature"),
        ("X-Amz-Expires=60", "X-Amz-Expires=60&X-Amz-Expires=60", "IncompleteSignature"),
        ("X-Amz-Expires=60&", "", "IncompleteSignature"),
        ("X-Amz-Date=2", "X-Amz-Date=", "IncompleteSignature"),
        ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1", "IncompleteSignature"),
        ("SignedHeaders=host", "SignedHeaders=x", "IncompleteSignature"),
        ("X-Amz-Signature", "X-Amz-Signed", "MissingAuthenticationToken"),
    ],
)
def test_a_signed_url_that_was_changed(old, new, code):
    request = presigned()
    assert old in request.query
    changed = attrs.evolve(request, query=request.query.replace(old, new))
    assert refusal(changed, presigned_at(request)).code == code


def test_a_signed_url_covers_method_body_and_headers():
    request = presigned()
    for changed in (attrs.evolve(request, method="POST"), attrs.evolve(request, body=b"x")):
        assert refusal(changed, presigned_at(request)).code == "SignatureDoesNotMatch"
    added = with_headers(request, x_amz_target=TARGET)
    assert refusal(added, presigned_at(request)).code == "IncompleteSignature"


def test_the_hash_of_another_body_is_named():
    assert "body" in refusal(signed(X_Amz_Content_SHA256=ZEROS)).message


def test_no_secret_is_printed():
    key = Key(ID, SECRET)
    assert SECRET not in repr(key)
    request = signed()
    assert request.headers["authorization"][-64:] not in repr(Signature.of(request, signed_at(request)))
