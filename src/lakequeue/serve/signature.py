"""Signature Version 4, in the ``Authorization`` header or in the URL. Like clients, the server computes it with
botocore.

A client must sign method, path, query, body, host, date, and each header that begins with ``x-amz-``. Some SDKs do
not sign the content type. Therefore, the action header or the body decides the protocol of a signed request.
"""

# mypy: allow-subclassing-any
# botocore has no types

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping, Set
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from urllib.parse import parse_qsl, quote, unquote_to_bytes

import attrs
from botocore.auth import SIGV4_TIMESTAMP, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders
from botocore.credentials import Credentials

from lakequeue.serve.auth import RequestHead
from lakequeue.serve.errors import RequestError

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "sqs"
WINDOW = timedelta(minutes=15)
"""Maximum difference between the clocks of client and server."""
MAX_EXPIRES = 7 * 24 * 3600
"""Maximum number of seconds for which a signed URL can be valid."""

_PARTS = ("Credential", "SignedHeaders", "Signature")
_IN_URL = "X-Amz-"
_EXPIRES = re.compile("[1-9][0-9]{0,5}")
_TIMESTAMP = re.compile("[0-9]{8}T[0-9]{6}Z")
_SIGNATURE = re.compile("[0-9a-f]{64}")
_BODY_HASH = "x-amz-content-sha256"


@attrs.frozen
class Signature:
    """A complete and recent signature, which was not yet compared with the secret and the request's body."""

    key_id: str
    _timestamp: str
    _region: str
    _request: RequestHead = attrs.field(repr=False)
    _headers: HTTPHeaders
    _signature: str = attrs.field(repr=False)
    _queries: Set[str] = attrs.field(repr=False)
    """Canonical forms of the query. The client may have signed any of these forms."""

    @classmethod
    def of(cls, request: RequestHead, now: datetime) -> Signature:
        """Parses a request's signature. Raises RequestError if it is missing, invalid, too old or incomplete."""
        lifetime = WINDOW
        if "authorization" in request.headers:
            parts, timestamp, own = _authorization(request), request.headers.get("x-amz-date", ""), ""
        else:
            parts = _url_parts(request)
            timestamp, lifetime = parts["Date"], timedelta(seconds=int(parts["Expires"]))
            own = f"{_IN_URL}Signature"
        key_id, date, region, service, ending = _credential(parts["Credential"])
        signed_at = _instant(timestamp)
        if not _SIGNATURE.fullmatch(parts["Signature"]):
            raise _incomplete("The Signature must be 64 hexadecimal digits.")
        if (service, ending) != (SERVICE, "aws4_request"):
            raise _mismatch(f"The credential must be scoped to {SERVICE}/aws4_request.")
        if date != timestamp[:8]:
            raise _mismatch("The date of the credential must be that of X-Amz-Date.")
        headers = _signed_headers(parts["SignedHeaders"], request.headers)
        body_hash = request.headers.get(_BODY_HASH)
        if body_hash is not None and not _SIGNATURE.fullmatch(body_hash):
            raise _incomplete("The body must be signed: X-Amz-Content-SHA256 must be its hash.")
        _check_window(timestamp, signed_at, now, lifetime)
        # botocore signs the URL as sent, where a space may be +
        queries = {_canonical_query(request.query, own, encode) for encode in (_encoded, str)}
        return cls(key_id, timestamp, region, request, headers, parts["Signature"], queries)

    def covers(self, header: str) -> bool:
        return header in self._headers

    def matches(self, secret: str, body: bytes) -> bool:
        """True if this secret signed this body. Raises RequestError if the client sent another body's hash."""
        body_hash = sha256(body).hexdigest()
        if self._request.headers.get(_BODY_HASH, body_hash) != body_hash:
            raise _mismatch("X-Amz-Content-SHA256 is not the hash of the body.")
        auth = _Signer(Credentials(self.key_id, secret), SERVICE, self._region)
        matching = False
        for query in self._queries:
            signed = _Signer.request(self._request, query, self._timestamp, self._headers, body_hash)
            text = auth.string_to_sign(signed, auth.canonical_request(signed))
            matching |= hmac.compare_digest(auth.signature(text, signed), self._signature)
        return matching


class _Signer(SigV4Auth):
    """Computes a signature over the headers that the client signed. botocore alone would choose other headers."""

    @staticmethod
    def request(
        request: RequestHead, query: str, timestamp: str, headers: HTTPHeaders, body_hash: str
    ) -> AWSRequest:
        path = request.path.lstrip("/")  # several slashes are signed as one
        url = f"http://{SERVICE}/{path}".replace("#", "%23")  # a fragment would not be signed
        signed = AWSRequest(request.method, url, {_BODY_HASH: body_hash})
        signed.context.update(timestamp=timestamp, signed=headers, query=query)
        return signed

    def canonical_query_string(self, request: AWSRequest) -> str:
        query: str = request.context["query"]
        return query

    def headers_to_sign(self, request: AWSRequest) -> HTTPHeaders:
        return request.context["signed"]


def _canonical_query(query: str, left_out: str, encode: Callable[[str], str]) -> str:
    pairs = (part.partition("=") for part in query.split("&") if part)
    encoded = sorted((encode(name), encode(value)) for name, _, value in pairs)
    return "&".join(f"{name}={value}" for name, value in encoded if name != left_out)


def _encoded(text: str) -> str:
    """Percent-encodes a text in the canonical form. Clients may sign and send it in different forms."""
    return quote(unquote_to_bytes(text.replace("+", " ").encode("latin-1")), safe="-_.~")


def mismatch() -> RequestError:
    return _mismatch("The signature does not match the request. Check the secret access key and the signing.")


def _authorization(request: RequestHead) -> dict[str, str]:
    algorithm, _, rest = request.headers["authorization"].strip().partition(" ")
    if algorithm != ALGORITHM:
        raise _incomplete(f"The header Authorization must begin with {ALGORITHM}.")
    pairs = [part.strip().partition("=") for part in rest.split(",")]
    parts = {name: value for name, _, value in pairs}
    if len(pairs) != len(_PARTS) or parts.keys() != {*_PARTS} or not all(parts.values()):
        raise _incomplete("The header Authorization must have Credential, SignedHeaders and Signature, once each.")
    return parts


def _url_parts(request: RequestHead) -> dict[str, str]:
    given = [(name, value) for name, value in parse_qsl(request.query) if name.startswith(_IN_URL)]
    parts = {name.removeprefix(_IN_URL): value for name, value in given}
    if "Signature" not in parts:
        raise RequestError("MissingAuthenticationToken", "The request must be signed.", 403)
    needed = (*_PARTS, "Algorithm", "Date", "Expires")
    if len(parts) < len(given) or not all(parts.get(name) for name in needed):
        raise _incomplete(f"A signed URL must have {', '.join(_IN_URL + name for name in needed)}, once each.")
    if parts["Algorithm"] != ALGORITHM:
        raise _incomplete(f"X-Amz-Algorithm must be {ALGORITHM}.")
    if not _EXPIRES.fullmatch(parts["Expires"]) or int(parts["Expires"]) > MAX_EXPIRES:
        raise _incomplete(f"X-Amz-Expires must be a number of seconds from 1 to {MAX_EXPIRES}.")
    return parts


def _credential(text: str) -> list[str]:
    parts = text.rsplit("/", 4)
    if len(parts) != 5 or not all(parts):
        raise _incomplete("The Credential must be KEY/DATE/REGION/SERVICE/aws4_request.")
    return parts


def _instant(timestamp: str) -> datetime:
    if _TIMESTAMP.fullmatch(timestamp):
        try:
            return datetime.strptime(timestamp, SIGV4_TIMESTAMP).replace(tzinfo=timezone.utc)
        except ValueError:
            pass
    raise _incomplete("The request must have an X-Amz-Date like 20260102T030405Z.")


def _signed_headers(text: str, given: Mapping[str, str]) -> HTTPHeaders:
    names = text.split(";")
    needed = {"host", *(name for name in given if name.startswith("x-amz-"))}
    if left_out := sorted(needed - {*names}):
        raise _incomplete(f"These headers must be signed: {', '.join(left_out)}.")
    headers = HTTPHeaders()
    for name in dict.fromkeys(names):
        if name not in given:
            raise _mismatch("A header that was signed did not arrive.")
        headers[name] = given[name]
    return headers


def _check_window(timestamp: str, signed_at: datetime, now: datetime, lifetime: timedelta) -> None:
    current = now.astimezone(timezone.utc).strftime(SIGV4_TIMESTAMP)
    minutes = WINDOW // timedelta(minutes=1)
    if signed_at < now - lifetime:
        age = f"{minutes} minutes" if lifetime == WINDOW else f"{lifetime // timedelta(seconds=1)} seconds"
        raise _expired(f"Signature expired: {timestamp} is over {age} before {current}.")
    if signed_at > now + WINDOW:
        raise _expired(f"Signature not yet current: {timestamp} is over {minutes} minutes after {current}.")


def _expired(message: str) -> RequestError:
    return RequestError("RequestExpired", message, 403)


def _incomplete(message: str) -> RequestError:
    return RequestError("IncompleteSignature", message)


def _mismatch(message: str) -> RequestError:
    return RequestError("SignatureDoesNotMatch", message, 403)
