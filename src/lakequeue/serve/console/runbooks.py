"""The pages for operators under ``/console/runbooks/``, which need neither a network nor a key."""

from __future__ import annotations

import re
from functools import cache
from html import escape
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

_PACKAGE = Path(__file__).parents[2]
_INSTALLED, _CHECKOUT = _PACKAGE / "runbooks", _PACKAGE.parents[1] / "docs" / "operation"
"""Directories of the pages: pyproject.toml puts the checkout's into the wheel."""
_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · lakequeue</title>
<link rel="icon" href="../icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="../console.css">
</head>
<body>
<header class="bar">
  <a class="brand" href="../"><img src="../icon.svg" alt="" width="20" height="20">lakequeue</a>
  <nav id="pages" aria-label="Pages">
    <a href="../">Console</a><a href="index">Runbooks</a><a href="alerts">Alerts</a>
  </nav>
</header>
<main class="page">
{text}</main>
</body>
</html>
"""


def runbook(http: Request) -> HTMLResponse:
    """Answers with a page, or with 404."""
    name = http.path_params["name"]
    if name not in _pages():
        raise HTTPException(404)
    return HTMLResponse(_rendered(name))


@cache
def _pages() -> dict[str, Path]:
    folder = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT
    return {path.stem: path for path in folder.glob("*.md")}


@cache
def _rendered(name: str) -> str:
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens, title = reader.parse(_pages()[name].read_text(encoding="utf-8")), name
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            plain = "".join(each.content for each in tokens[place + 1].children or [] if each.type != "link_open")
            title = plain if token.tag == "h1" else title
            token.attrSet("id", _anchor(plain))
        for child in token.children or []:
            if child.type == "link_open":
                child.attrSet("href", _target(str(child.attrGet("href"))))
            elif child.type == "image":
                child.attrs.pop("src", None)  # pictures are not shipped
    return _FRAME.format(title=escape(title), text=reader.renderer.render(tokens, reader.options, {}))


def _anchor(heading: str) -> str:
    """Returns the id of a heading, which is its id on the documentation's site, too."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def _target(link: str) -> str:
    """Returns a link that works here. A page that is not shipped leads to the list of pages."""
    page, hash_, part = link.partition("#")
    if "://" in link or not page:
        return link
    name = page.removesuffix(".md")
    return f"{name}{hash_}{part}" if name in _pages() else "index"
