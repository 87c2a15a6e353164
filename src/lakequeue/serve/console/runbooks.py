"""Operators' pages under ``/console/runbooks/``, and the guides to which they link. They need no network."""

from __future__ import annotations

import re
from functools import cache
from html import escape
from pathlib import Path
from posixpath import normpath

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

_PACKAGE = Path(__file__).parents[2]
_INSTALLED, _CHECKOUT = _PACKAGE / "runbooks", _PACKAGE.parents[1] / "docs"
"""Directories that contain the pages: the first in an installed package, the second in a checkout."""
_PARTS = {"operation": "", "operation/stores": "stores/", "guides": "guides/", "reference": "reference/"}
"""Maps directories of pages to the prefix of their pages' names."""
_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · lakequeue</title>
<link rel="icon" href="{up}icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="{up}console.css">
</head>
<body>
<header class="bar">
  <a class="brand" href="{up}"><img src="{up}icon.svg" alt="" width="20" height="20">lakequeue</a>
  <nav id="pages" aria-label="Pages">
    <a href="{up}">Console</a><a href="{up}runbooks/index">Runbooks</a><a href="{up}runbooks/alerts">Alerts</a>
  </nav>
</header>
<main class="page">
{text}</main>
</body>
</html>
"""


def runbook(http: Request) -> HTMLResponse:
    """Returns the page that a request names. Answers 404 if there is no such page."""
    name = http.path_params["name"]
    if name not in _pages():
        raise HTTPException(404)
    return HTMLResponse(_rendered(name))


@cache
def _pages() -> dict[str, Path]:
    """Returns the file of each page by the page's name, such as ``alerts`` or ``guides/consumers``."""
    root = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT
    return {
        f"{begin}{path.stem}": path for folder, begin in _PARTS.items() for path in (root / folder).glob("*.md")
    }


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
                target = _target(name, str(child.attrGet("href")))
                child.attrs = {} if target is None else {"href": target}
            elif child.type == "image":
                child.attrs.pop("src", None)  # pictures are not shipped
    text = reader.renderer.render(tokens, reader.options, {})
    return _FRAME.format(title=escape(title), text=text, up=_up(name))


def _anchor(heading: str) -> str:
    """Returns the id of a heading, as the documentation's site computes it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def _up(name: str) -> str:
    return "../" * (name.count("/") + 1)


def _target(name: str, link: str) -> str | None:
    """Converts a page's link to a link within the console. Returns None if the package lacks the target."""
    page, hash_, part = link.partition("#")
    if "://" in link or not page:
        return link
    pages = _pages()
    files = {path: known for known, path in pages.items()}
    target = files.get(Path(normpath(pages[name].parent / page)))
    return None if target is None else f"{_up(name)}runbooks/{target}{hash_}{part}"
