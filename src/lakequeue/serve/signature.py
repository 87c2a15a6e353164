"""Signature Version 4 in the header Authorization, as SQS clients sign their requests.

The canonical request and the signature over it are botocore's, so that the server computes what its clients do.
What has to be signed beside method, path, query and body: the host, the date, and every header whose name begins
with ``x-amz-``, among them the action. Not the content type, which some SDKs leave out: a signed request cannot
change its protocol without the header of the action, or without another body.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from urllib.parse import parse_qsl

import attrs
from botocore.auth import SIGV4_TIMESTAMP, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders
from botocore.credentials import Credentials

from lakequeue.serve.auth import Request
from lakequeue.serve.faults import WireError

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "sqs"
WINDOW = timedelta(minutes=15)
"""How far the clock of a client may be from the server's."""

_PARTS = ("Credential", "SignedHeaders", "Signature")
_TIMESTAMP = re.compile("[0-9]{8}T[0-9]{6}Z")
_SIGNATURE = re.compile("[0-9a-f]{64}")
_BODY_HASH = "x-amz-content-sha256"


@attrs.frozen
class Signed:
    """A request whose signature is complete and lately made; body and secret are yet to be compared.

    Attributes:
        key_id: access key id of who says to have signed it.
    """

    key_id: str
    _region: str
    _request: Request = attrs.field(repr=False)
    _headers: HTTPHeaders
    _signature: str = attrs.field(repr=False)

    @classmethod
    def of(cls, request: Request, now: datetime) -> Signed:
        """Reads the signature of a request.

        Raises:
            WireError: there is none, it is incomplete or in another form, leaves out what has to be signed, or
                was made outside the clock window.
        """
        parts = _authorization(request)
        key_id, date, region, service, ending = _credential(parts["Credential"])
        timestamp = request.headers.get("x-amz-date", "")
        made = _instant(timestamp)
        if not _SIGNATURE.fullmatch(parts["Signature"]):
            raise _incomplete("The Signature must be 64 hexadecimal digits.")
        if (service, ending) != (SERVICE, "aws4_request"):
            raise _mismatch(f"The credential must be scoped to {SERVICE}/aws4_request.")
        if date != timestamp[:8]:
            raise _mismatch("The date of the credential must be that of X-Amz-Date.")
        headers = _signed_headers(parts["SignedHeaders"], request.headers)
        told = request.headers.get(_BODY_HASH)
        if told is not None and not _SIGNATURE.fullmatch(told):
            raise _incomplete("The body must be signed: X-Amz-Content-SHA256 must be its hash.")
        _check_window(timestamp, made, now)
        return cls(key_id, region, request, headers, parts["Signature"])

    def by(self, secret: str, body: bytes) -> bool:
        """Whether a secret made the signature, with this body; takes as long for a wrong secret.

        Raises:
            WireError: the body is not the one that the head tells of.
        """
        body_hash = sha256(body).hexdigest()
        if self._request.headers.get(_BODY_HASH, body_hash) != body_hash:
            raise _mismatch("The body is not the one that X-Amz-Content-SHA256 tells of.")
        auth = _Canonical(Credentials(self.key_id, secret), SERVICE, self._region)
        asked = _Canonical.request(self._request, self._headers, body_hash)
        text = auth.string_to_sign(asked, auth.canonical_request(asked))
        return hmac.compare_digest(auth.signature(text, asked), self._signature)


class _Canonical(SigV4Auth):
    """Signs the headers that the client has signed, whichever botocore would choose."""

    @staticmethod
    def request(request: Request, headers: HTTPHeaders, body_hash: str) -> AWSRequest:
        query = f"?{request.query}" if request.query else ""
        path = request.path.lstrip("/")  # several slashes are signed as one
        url = f"http://{SERVICE}/{path}{query}".replace("#", "%23")  # no fragment that goes unsigned
        asked = AWSRequest(request.method, url, {_BODY_HASH: body_hash})
        asked.context.update(timestamp=request.headers["x-amz-date"], signed=headers)
        return asked

    def headers_to_sign(self, request: AWSRequest) -> HTTPHeaders:
        return request.context["signed"]


def mismatch() -> WireError:
    """The secret that is known for the key id made another signature."""
    return _mismatch("The signature does not match the request. Check the secret access key and the signing.")


def _authorization(request: Request) -> dict[str, str]:
    """The parts of the header Authorization."""
    text = request.headers.get("authorization")
    if text is None:
        if any(name.lower() == "x-amz-signature" for name, _ in parse_qsl(request.query)):
            raise _incomplete("Presigned requests are not taken; sign by the header Authorization.")
        raise WireError("MissingAuthenticationToken", "The request must be signed.", 403)
    algorithm, _, rest = text.strip().partition(" ")
    if algorithm != ALGORITHM:
        raise _incomplete(f"The header Authorization must begin with {ALGORITHM}.")
    pairs = [part.strip().partition("=") for part in rest.split(",")]
    parts = {name: value for name, _, value in pairs}
    if len(pairs) != len(_PARTS) or parts.keys() != {*_PARTS} or not all(parts.values()):
        raise _incomplete("The header Authorization must have Credential, SignedHeaders and Signature, once each.")
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
    raise _incomplete("The request must have a header X-Amz-Date like 20260102T030405Z.")


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


def _check_window(timestamp: str, made: datetime, now: datetime) -> None:
    told = now.astimezone(timezone.utc).strftime(SIGV4_TIMESTAMP)
    minutes = WINDOW // timedelta(minutes=1)
    if made < now - WINDOW:
        raise _expired(f"Signature expired: {timestamp} is over {minutes} minutes before {told}.")
    if made > now + WINDOW:
        raise _expired(f"Signature not yet current: {timestamp} is over {minutes} minutes after {told}.")


def _expired(message: str) -> WireError:
    return WireError("RequestExpired", message, 403)


def _incomplete(message: str) -> WireError:
    return WireError("IncompleteSignature", message)


def _mismatch(message: str) -> WireError:
    return WireError("SignatureDoesNotMatch", message, 403)
