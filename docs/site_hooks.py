"""Hooks of ``mkdocs build``: ids of rules become links, and checks of the built pages.

They ask no other host for anything, links to rules lead to a rule, and pages of the API show no internals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

RULES = "reference/rules.md"
ALERTS = "operation/alerts.md"
"""Its table of contents is too narrow for the full names of alerts."""
_RULE = re.compile(r"<strong>([A-Z]{3}-\d+)</strong>")
_ID = re.compile(r"\b[A-Z]{3}-\d+\b")
_PAGE = re.compile(r"\bdocs/([\w/-]+\.md)\b")
_BOOSTS = {
    "operation/troubleshooting.md": 4,
    "operation/disk-full.md": 4,
    "operation/damage.md": 4,
    "is-it-for-me/": 2,
    "operation/cost.md": 4,
    "operation/performance.md": 4,
    "operation/platforms.md": 4,
    "limits.md": 2,
    "guides/": 2,
    "operation/": 2,
    "reference/api/aio": 0.05,
    "reference/api/": 0.1,
    RULES: 0.02,
    "internals/": 0.2,
}
"""Factors for the rank in the site's search: what users of it look for comes before names and rules."""
_OPTION = r"(?<![\w-])--[a-z][a-z-]+"
_SNAKE = r"\b[a-z]+(?:_[a-z]+)+\b"
_CAMEL = r"\b[A-Za-z]*[a-z][A-Z]\w*\b"
_DEFINED = {
    "reference/errors/": _CAMEL,
    "reference/cli/": _OPTION,
    "reference/profiles/": _SNAKE,
}
"""Pages whose text defines names. Elsewhere, only headings do."""
_PAGES_OF_THE_ROOT = ("changelog.md", "security.md")
_ROOT_FILES = {
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "LICENSE": "license.txt",
}
_ROOT_LINK = re.compile(rf"\]\(\.\./((?:\.\./)*)({'|'.join(_ROOT_FILES)})\)")
"""A link that leads out of ``docs/`` in the repository, and stays in the site."""
_FOOTER = {
    "changelog/": "Changelog",
    "security/": "Security",
    "license.txt": "Apache-2.0",
}
_ROOT = "root-of-the-site:"
_KEPT = re.compile(r"(<(a|code|pre|h\d)\b.*?</\2>|<[^>]*>)", re.DOTALL)
"""Where an id stays as it is: in links, code and headings, and inside tags."""
_INTERNALS = re.compile(r"\b(?:OpenQueue|448|ABSENT|_[A-Z]{2,}\w*)\b")
"""What griffe shows of our source where ``site_api.py`` and the filters do not help it; 448 is 0o700.

A name such as ``_DEFAULT`` is that of a constant, whose value should be there."""
_PYTHON_FILE = re.compile(
    r"""(\.py<span class="w"> </span>)<span class="s">&lt;&lt;'END'</span>\n(.*?)<span class="s">END</span>""",
    re.DOTALL,
)
"""A file of Python that a block of shell writes."""
_RULE_LINK = re.compile(r'href="([^"#]*/rules/)#(\w{3}-\d+)"')
_LOADED = re.compile(r"(?:url\(\s*|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)")


def on_config(config: Any) -> Any:
    """Shows the version in the footer, with links that ``on_post_page`` completes."""
    project = Path(config.config_file_path).with_name("pyproject.toml")
    [version] = re.findall(
        r'^version = "(.+)"$', project.read_text("utf-8"), re.MULTILINE
    )
    links = [f'<a href="{_ROOT}{url}">{name}</a>' for url, name in _FOOTER.items()]
    config.copyright = " · ".join([f"lakequeue {version}", *links])
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the icon of the console, and files of the project's root that users of the site look for."""
    project = Path(config.config_file_path).parent
    icon = project / "src/lakequeue/serve/console/static/icon.svg"
    files.append(File.generated(config, icon.name, abs_src_path=str(icon)))
    licence = str(project / "LICENSE")
    files.append(File.generated(config, "license.txt", abs_src_path=licence))
    for name in _PAGES_OF_THE_ROOT:
        text = (project / name.upper()).with_suffix(".md").read_text("utf-8")
        page = File.generated(config, name, content=text.replace("](docs/", "]("))
        files.append(page)
    return files


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Completes the links of the footer."""
    return output.replace(_ROOT, get_relative_url(".", page.url) + "/")


def on_post_template(output: str, template_name: str, config: Any) -> str:
    """Completes the links of the footer of the page for unknown addresses."""
    return output.replace(_ROOT, "/")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Ranks a page in the search.

    Gives an overview its heading as a title, instead of its name in the list of pages.
    Hides the list of pages next to a page that is a section of its own: it would have one line.
    """
    markdown = _ROOT_LINK.sub(
        lambda link: f"]({link[1]}{_ROOT_FILES[link[2]]})", markdown
    )
    if page.file.src_uri in _PAGES_OF_THE_ROOT:
        page.meta["search"] = {"exclude": True}
    if page.title == "Overview":
        page.meta["title"] = heading = markdown.removeprefix("# ").partition("\n")[0]
        if page.file.name == "index":
            page.title = heading  # also in the link from the page before
    boosts = [
        boost for path, boost in _BOOSTS.items() if page.file.src_uri.startswith(path)
    ]
    if boosts:
        page.meta.setdefault("search", {"boost": boosts[0]})
    if page.parent is None:
        page.meta.setdefault("hide", ["navigation"])
    return markdown


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Gives each rule an anchor, and links ids of rules and paths of pages wherever a text names them.

    Colours Python that a block of shell writes as Python, not as one text.
    """
    html = _PYTHON_FILE.sub(_coloured, html)
    if page.file.src_uri == ALERTS:
        for alert in page.toc.items[0].children:
            alert.title = alert.title.removeprefix("Lakequeue")
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


def _coloured(file: re.Match[str]) -> str:
    source = unescape(re.sub("<[^>]+>", "", file[2]))
    code = highlight(source, PythonLexer(), HtmlFormatter(nowrap=True))
    return f"{file[1]}&lt;&lt;'END'\n{code}END"


def on_post_build(config: Any) -> None:
    """Fails where a built page is not what the text above says; it must look the same without a network."""
    site = Path(config.site_dir)
    _tag_names(site / "search" / "search_index.json")
    _check_api(site / "reference" / "api")
    _check_rule_links(site)
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


def _tag_names(index: Path) -> None:
    """Tags sections of the search's index with the names that they define. The script ``site.js`` searches for tags."""
    found = json.loads(index.read_text("utf-8"))
    for section in found["docs"]:
        names = re.findall(f"{_CAMEL}|{_SNAKE}", section["title"])
        for page, pattern in _DEFINED.items():
            if section["location"].startswith(page):
                names += re.findall(pattern, section["text"])
        if names:
            section["tags"] = sorted({tag for name in names for tag in _tags(name)})
    index.write_text(json.dumps(found, separators=(",", ":")), "utf-8")


def _tags(name: str) -> Iterator[str]:
    joined = name.lower().replace("_", "").replace("-", "")
    yield f"qq{joined}"
    if name.startswith("-"):
        yield f"qo{joined}"


def _check_api(api: Path) -> None:
    found = [
        f"{path.relative_to(api)}: {name}"
        for path in api.rglob("*.html")
        for name in _INTERNALS.findall(path.read_text(encoding="utf-8"))
    ]
    if found:
        raise PluginError("pages of the API show internals: " + ", ".join(found))


def _check_rule_links(site: Path) -> None:
    rules = site / "reference" / "rules" / "index.html"
    anchors = re.findall(r' id="(\w{3}-\d+)"', rules.read_text(encoding="utf-8"))
    links = [
        (page.parent, *link)
        for page in site.rglob("*.html")
        for link in _RULE_LINK.findall(page.read_text(encoding="utf-8"))
    ]
    wrong = [
        f"{page.relative_to(site)}: {rule}"
        for page, target, rule in links
        if (page / target).resolve() != rules.parent.resolve() or rule not in anchors
    ]
    if wrong or not any("api" in page.parts for page, *_ in links):
        raise PluginError(f"links to rules are missing or lead nowhere: {wrong}")


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
            if tag == "a" or ("rel", "canonical") in attrs:  # `mkdocs serve` adds this
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
