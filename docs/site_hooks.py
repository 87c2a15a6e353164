"""Hooks of ``mkdocs build``: ids of rules become links, and the built pages ask no other host for anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

RULES = "reference/rules.md"
_RULE = re.compile(r"<strong>([A-Z]{3}-\d+)</strong>")
_ID = re.compile(r"\b[A-Z]{3}-\d+\b")
_PAGE = re.compile(r"\bdocs/([\w/-]+\.md)\b")
_KEPT = re.compile(r"(<(a|code|pre|h\d)\b.*?</\2>|<[^>]*>)", re.DOTALL)
"""Where an id stays as it is: in links, code and headings, and inside tags."""
_LOADED = re.compile(r"(?:url\(\s*|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)")


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Gives each rule an anchor, and links ids of rules and paths of pages wherever a text names them."""
    rules = files.get_file_from_path(RULES)
    if page.file is rules:
        return _RULE.sub(
            lambda rule: f'<strong id="{rule[1].lower()}">{rule[1]}</strong>', html
        )

    def page_link(name: re.Match[str]) -> str:
        target = files.get_file_from_path(name[1])
        return (
            f'<a href="{target.url_relative_to(page.file)}">{name[0]}</a>'
            if target
            else name[0]
        )

    known = set(re.findall(r"\*\*([A-Z]{3}-\d+)\*\*", rules.content_string))

    def link(rule: re.Match[str]) -> str:
        target = f"{rules.url_relative_to(page.file)}#{rule[0].lower()}"
        return f'<a href="{target}">{rule[0]}</a>' if rule[0] in known else rule[0]

    parts = _KEPT.split(html)  # text, what is kept, its tag or None; text, …
    parts[::3] = [_PAGE.sub(page_link, _ID.sub(link, text)) for text in parts[::3]]
    del parts[2::3]
    return "".join(parts)


def on_post_build(config: Any) -> None:
    """Fails where a page of the site loads anything from another host: it must look the same without a network."""
    site = Path(config.site_dir)
    found = [
        f"{path.relative_to(site)}: {url}"
        for kind, urls in (
            ("html", _loaded_by_a_page),
            ("css", _LOADED.findall),
            ("svg", _LOADED.findall),
        )
        for path in site.rglob(f"*.{kind}")
        for url in urls(path.read_text(encoding="utf-8"))
    ]
    if found:
        raise PluginError("pages load from other hosts: " + ", ".join(found))


def _loaded_by_a_page(html: str) -> Iterator[str]:
    urls: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(
            self, tag: str, attrs: list[tuple[str, str | None]]
        ) -> None:
            if (
                "mermaid" in (dict(attrs).get("class") or "").split()
            ):  # the theme would fetch the script that draws it
                urls.append("mermaid")
            if tag == "a":
                return
            for name, value in attrs:
                if name in ("src", "srcset", "href", "data", "poster") and re.match(
                    "(https?:)?//", value or ""
                ):
                    urls.append(value or "")
                elif name == "style":
                    urls.extend(_LOADED.findall(value or ""))

    Parser().feed(html)
    return iter(urls)
