"""Calls of the Query protocol: forms, and the XML that answers them."""

from __future__ import annotations

from urllib.parse import urlencode
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import httpx

from lakequeue.serve.sqs.query_protocol import NAMESPACE

VERSION = "2012-11-05"
FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}


class Queries:
    """Sends forms to a server, to the path of a queue or to that of none."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=60)

    def send(self, action: str, fields: dict[str, str] | None = None, path: str = "/") -> httpx.Response:
        given = {"Action": action, "Version": VERSION, **(fields or {})}
        return self._http.post(path, content=urlencode(given), headers=FORM)

    def __call__(self, action: str, fields: dict[str, str] | None = None, path: str = "/") -> Element:
        """The result of an action, or the document of an answer that has none."""
        answer = self.send(action, fields, path)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/xml")
        document = read(answer)
        assert document.tag == f"{action}Response"
        assert document.findtext("ResponseMetadata/RequestId") == answer.headers["x-amzn-requestid"]
        found = document.find(f"{action}Result")
        return document if found is None else found

    def refused(self, action: str, fields: dict[str, str] | None = None, path: str = "/") -> tuple[int, str]:
        """Status and code of a refusal."""
        answer = self.send(action, fields, path)
        document = read(answer)
        assert document.tag == "ErrorResponse"
        assert [part.tag for part in document] == ["Error", "RequestId"]
        assert [part.tag for part in document[0]] == ["Type", "Code", "Message", "Detail"]
        assert document.findtext("RequestId") == answer.headers["x-amzn-requestid"]
        assert document.findtext("Error/Type") == "Sender" and document.findtext("Error/Message")
        return answer.status_code, document.findtext("Error/Code") or ""


def read(answer: httpx.Response) -> Element:
    """The document without its namespace, of which every element has to be."""
    document = ElementTree.fromstring(answer.content)
    for element in document.iter():
        assert element.tag.startswith(f"{{{NAMESPACE}}}")
        element.tag = element.tag.rpartition("}")[2]
    return document


def texts(found: Element, name: str) -> list[str]:
    return [element.text or "" for element in found.findall(name)]


def pairs(found: Element, name: str, key: str = "Name") -> dict[str, str]:
    """A map as it is spelled out."""
    return {each.findtext(key) or "": each.findtext("Value") or "" for each in found.findall(name)}
