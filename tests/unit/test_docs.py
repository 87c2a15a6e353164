"""The pages of reference match the sources, and links between pages lead somewhere."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import typer.main

import lakequeue
from lakequeue import errors
from lakequeue.cli import app
from lakequeue.conditions import evaluator, predicate, sandbox
from lakequeue.model.attributes import ATTRIBUTE_NAMES
from lakequeue.model.clock import Clock
from lakequeue.model.profiles import PROFILES
from lakequeue.model.states import TRANSITIONS, MessageState
from lakequeue.operations import browse, relations, sql_views
from lakequeue.renewal.policies import Renewal

HERE = Path(__file__).parents[2]
REFERENCE = HERE / "docs" / "reference"
CONDITIONS, CLI, SQL, STATES, FEATURES, ERRORS = (
    (REFERENCE / f"{page}.md").read_text(encoding="utf-8")
    for page in ("conditions", "cli", "sql", "states", "profiles", "errors")
)
FOR_ME, PERFORMANCE, README = (
    (HERE / page).read_text(encoding="utf-8")
    for page in ("docs/is-it-for-me/index.md", "docs/operation/performance.md", "README.md")
)
API = [
    name
    for page in sorted((REFERENCE / "api").glob("*.md"))
    for name in re.findall(r"^::: lakequeue\.([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]
"""What the pages of the API show."""
WIDTH = 88
"""Maximum characters of code next to the site's links on a screen of 1280; see `docs/site.css`."""
PAGES = [*HERE.glob("*.md"), *(HERE / "docs").rglob("*.md")]


def rows(text: str, first: str) -> list[list[str]]:
    """Cells of the table whose first heading is this one, without the heading."""
    table = text.split(f"\n| {first} |")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def prose(text: str) -> str:
    """A text without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def codes(text: str) -> list[str]:
    """What a text has in code."""
    return [name.replace("\\", "") for name in re.findall("`([^`]+)`", text)]


def listed(kind: str) -> list[str]:
    """What a row of the tables of conditions names in code."""
    [row] = re.findall(rf"^\| {re.escape(kind)} \| (.*) \|$", CONDITIONS, re.MULTILINE)
    return codes(row)


def test_the_page_names_the_columns_of_conditions():
    assert listed("operators") == list(evaluator.OPERATORS)
    for kind, names in evaluator.FUNCTIONS.items():
        assert listed(kind) == list(names), kind
    assert listed("types to cast to") == list(evaluator.TYPES)


def test_the_page_names_the_columns_of_a_condition():
    assert [name for names, *_ in rows(CONDITIONS, "column") for name in codes(names)] == browse.SCHEMA.names


def test_the_page_names_the_limits_of_a_condition():
    assert f"{predicate.LONGEST:,} characters" in CONDITIONS
    batch = f"{browse.ROWS:,} to {browse.GROWTH * browse.ROWS:,} messages or {browse.BYTES // 2**20} MiB"
    assert f"| time for one batch, {batch} | {sandbox.SECONDS:g} s |" in CONDITIONS
    assert f"{sandbox.MEMORY // 2**20} MiB in all" in CONDITIONS
    assert f"| {sandbox.AT_ONCE}; others wait for {sandbox.WAIT_SECONDS:g} s |" in CONDITIONS


@pytest.mark.spec("STA-13")
def test_diagram_and_table_of_states_show_the_transitions_that_the_rules_allow():
    table = [(before, after) for before, after, _ in rows(STATES, "from")]
    drawn = re.findall(r'data-from="([^"]+)" data-to="([^"]+)"', (REFERENCE / "states.svg").read_text("utf-8"))
    arrows = [(before, after) for froms, tos in drawn for before in froms.split() for after in tos.split()]
    assert len(table) == len(set(table)) and len(arrows) == len(set(arrows))
    assert (
        set(table)
        == set(arrows)
        == {(before.value, after.value) for before in TRANSITIONS for after in TRANSITIONS[before]}
    )


def test_every_state_is_explained():
    assert [codes(name)[0] for name, *_ in rows(STATES, "state")] == [state.value for state in MessageState]


def test_the_page_of_profiles_matches_the_sources():
    def number(value: float | None) -> str:
        return "any" if value is None else f"{value:,}"

    def span(low: float, high: float | None) -> str:
        return "up to the retention period" if high is None else f"{low:,}-{high:,}"

    profiles = [PROFILES[name] for name in ("lake", "sqs", "sqs-2018", "cmq")]
    table = FEATURES.split("\n\n| |")[1].split("\n\n")[0].splitlines()[2:]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    told = {name: cells for name, *cells in lines}
    assert told == {
        "entries in a batch": [number(p.max_batch) for p in profiles],
        "messages in flight": [number(p.max_inflight_messages.default) for p in profiles],
        "delayed messages": [number(p.max_delayed_messages.default) for p in profiles],
        "largest message (bytes)": [number(p.maximum_message_size.high) for p in profiles],
        "delay (s)": [span(p.delay.low, p.delay.high) for p in profiles],
        "wait of a receive (s)": [span(p.receive_wait_time.low, p.receive_wait_time.high) for p in profiles],
        "visibility timeout (s)": [span(p.visibility_timeout.low, p.visibility_timeout.high) for p in profiles],
        "retention period (s)": [
            span(p.message_retention_period.low, p.message_retention_period.high) for p in profiles
        ],
        "handle after its timeout": [
            "works until received again" if p.receipt_policy == "lenient" else "refused" for p in profiles
        ],
    }


def test_every_attribute_has_a_row():
    told = {codes(name)[0]: codes(wire)[0] for name, wire, *_ in rows(FEATURES, "attribute")}
    missing = [
        f"| `{name}` | `{ATTRIBUTE_NAMES[name]}` | none | |" for name in ATTRIBUTE_NAMES if name not in told
    ]
    assert told == ATTRIBUTE_NAMES, "\n".join(["docs/reference/profiles.md:", *missing])


def test_every_error_has_a_row():
    told = {codes(code)[0]: (int(status), codes(legacy)[0]) for code, status, legacy, _ in rows(ERRORS, "code")}
    assert told == {code: (error.status, error.legacy_code) for code, error in errors.SERVICE_ERRORS.items()}


def test_every_public_name_is_on_a_page_of_the_api():
    told = {name for name in API if "." not in name}
    assert set(lakequeue.__all__) == told | errors.SERVICE_ERRORS.keys() | {"__version__"}


def undocumented(shown: Any) -> list[str]:
    """Returns members without a text: of their own, of their class, or of the protocol that it follows.

    A text of a class for several attributes, as in ``a, b: …``, does not count: the site breaks it into pieces.
    """
    text, source = inspect.getdoc(shown) or "", inspect.getsource(shown)
    protocols = [protocol for protocol in (Clock, Renewal) if protocol is not shown]
    inherited = inspect.getmembers(shown, lambda member: isinstance(member, property))
    members = {**dict.fromkeys(getattr(shown, "__annotations__", ())), **dict(inherited), **vars(shown)}
    return [
        name
        for name, member in members.items()
        if not name.startswith("_")
        and not re.search(rf"^ +{name}: ", text, re.MULTILINE)
        and not re.search(rf'^    {name}\b[^\n]*\n    """', source, re.MULTILINE)
        and not (isinstance(member, property | classmethod | FunctionType) and inspect.getdoc(member))
        and not any(hasattr(protocol, name) for protocol in protocols)
    ]


@pytest.mark.parametrize("name", API)
def test_every_public_member_has_a_text(name: str):
    module, _, path = name.rpartition(".")
    shown = getattr(importlib.import_module(f"lakequeue.{module}".rstrip(".")), path)
    assert inspect.getdoc(shown)
    assert not inspect.isclass(shown) or undocumented(shown) == []


@pytest.mark.parametrize("view", ["queues", "messages", "groups", "receipts", "stats"])
def test_the_page_names_the_columns_of_a_view(view: str):
    schema = {field.name: sql_views.sql_type(field.type) for field in relations.SCHEMAS[view]}
    table = rows(SQL.split(f"\n## {view}\n")[1].split("\n## ")[0], "column")
    told = {name: kind.replace("&lt;", "<") for names, kind, _ in table for name in codes(names)}
    assert told.keys() == schema.keys()
    for name, kind in told.items():
        assert kind.partition(" ")[0].partition("<")[0] == schema[name].partition("<")[0], name


def test_the_history_has_the_columns_of_messages_but_some():
    [told] = re.findall(r"the columns of `messages` without\s(.*?)\.", SQL, re.DOTALL)
    assert set(codes(told)) == {*relations.SCHEMAS["messages"].names} - {*relations.SCHEMAS["history"].names}


def test_every_command_and_option_is_documented():
    group: Any = typer.main.get_command(app)
    told = {word for text in codes(prose(CLI)) for word in re.split(r"[\s…,]+", text)}
    commands = [group.get_command(None, name) for name in group.commands]
    commands += [each for command in commands for each in getattr(command, "commands", {}).values()]
    for command in [group, *commands]:
        wanted = {name for each in command.params if each.param_type_name == "option" for name in each.opts}
        wanted |= {command.name} if command is not group else set()
        assert wanted <= told, f"{command.name}: {wanted - told}"


def headings(page: Path) -> set[str]:
    """Anchors of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_links_between_the_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)]+)\)", prose(page.read_text(encoding="utf-8"))):
            if not target.startswith("https://"):
                path, _, heading = target.partition("#")
                leads_to = page.parent / path if path else page
                assert leads_to.exists(), f"{page.name}: {target}"
                if leads_to.suffix == ".png":
                    assert heading in ("", "only-light", "only-dark"), f"{page.name}: {target}"
                    continue
                assert not heading or heading in headings(leads_to), f"{page.name}: {target}"


def test_files_that_the_pages_name_exist():
    for page in PAGES:
        for path in re.findall(r"`((?:src|tests|jobs|conf|docs)/[\w/.]+)`", page.read_text(encoding="utf-8")):
            assert (HERE / path).exists(), f"{page.name}: {path}"


def test_every_page_is_in_the_navigation():
    listing = (HERE / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (HERE / "docs").rglob("*.md"):
        assert f": {page.relative_to(HERE / 'docs')}\n" in listing, page


@pytest.mark.parametrize(
    ("listings", "below"),
    [
        (("index.md", "is-it-for-me/index.md", "guides/index.md", "operation/index.md", "reference/index.md"), ""),
        (("reference/api.md",), "reference/api/"),
    ],
)
def test_pages_that_list_the_others_list_them_all(listings: tuple[str, ...], below: str):
    """The first page and the overviews list all pages except those of the API, which have their own list."""
    listed_on = [HERE / "docs" / listing for listing in listings]
    linked = {
        (page.parent / target).resolve()
        for page in listed_on
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose(page.read_text(encoding="utf-8")))
    }
    wanted = {page for page in (HERE / "docs" / below).rglob("*.md") if below or page.parent.name != "api"}
    assert wanted - linked - {*listed_on} == set()


def test_the_page_that_helps_to_decide_compares_as_the_readme_does():
    assert rows(README.replace("](docs/", "](../"), "| choose it") == rows(FOR_ME, "| choose it")


def test_pages_quote_figures_of_the_page_on_performance():
    measured = rows(PERFORMANCE, "two cores; each commit synced")
    for page in README, FOR_ME:
        quoted = rows(page, "two cores; each commit synced")
        assert quoted and [row for row in quoted if row not in measured] == []


def test_lines_of_code_fit_on_a_page():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^ *```\w+\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
            assert [line for line in block.splitlines() if len(line) > WIDTH] == [], page.name


def test_what_belongs_to_an_item_of_a_list_is_indented_by_four():
    """The site's Markdown ends the list otherwise, and counts from 1 again."""
    for page in PAGES:
        lines = prose(page.read_text(encoding="utf-8")).splitlines()
        wrong = [
            line
            for before, line in zip(["", *lines], lines, strict=False)
            if not before and re.match(r" {1,3}\S", line) or re.match(r" {1,3}(```|[-*] )", line)
        ]
        assert wrong == [], page.name


def test_blocks_of_commands_are_coloured_as_a_shell():
    """In a ``console`` block a line without a prompt counts as output, which is grey."""
    assert [page.name for page in PAGES if "```console" in page.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("face", [lakequeue.Queue, lakequeue.LakeQueue])
def test_the_rules_of_a_verb_are_in_the_last_line_of_its_text(face: type) -> None:
    for name, verb in inspect.getmembers(face, inspect.isfunction):
        text = (inspect.getdoc(verb) or "").splitlines()
        if not name.startswith("_"):
            assert not [line for line in text[:-1] if re.search(r"\([A-Z]{3}-\d+", line)], name
