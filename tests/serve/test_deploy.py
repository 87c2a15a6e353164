"""What `deploy/` says: its commands are ours, and its ports, probes and metrics exist."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from lakequeue.cli import app
from serve.promql import Known, problems

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
MANIFESTS: list[dict[str, Any]] = [
    document
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
UNITS = sorted((DEPLOY / "systemd").iterdir())
PORT, METRICS_PORT = 9324, 9400


def containers() -> dict[str, dict[str, Any]]:
    found = {}
    for each in MANIFESTS:
        spec = each.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec).get("template", {}).get("spec", {})
        found.update({container["name"]: container for container in spec.get("containers", [])})
    return found


def of_script(arguments: list[str]) -> list[str]:
    [script] = arguments
    return shlex.split(re.findall(r"lakequeue ([^;>]+)", script)[0])


def command_lines() -> dict[str, list[str]]:
    """Arguments of lakequeue, by where they stand."""
    [image] = re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Containerfile").read_text(), re.M)
    found = {"Containerfile": json.loads(image)}
    for name, service in COMPOSE["services"].items():
        if service["image"] != "lakequeue":
            continue
        given = service["command"]
        found[f"compose: {name}"] = of_script(given) if "entrypoint" in service else given
    for name, container in containers().items():
        found[f"kubernetes: {name}"] = (
            of_script(container["args"]) if "command" in container else container["args"]
        )
    for unit in UNITS:
        for line in re.findall(r"^ExecStart=/opt/lakequeue/bin/lakequeue (.+)$", unit.read_text(), re.M):
            for variable, value in re.findall(r"^Environment=(\w+)=(.*)$", unit.read_text(), re.M):
                line = re.sub(rf"\${{?\b{variable}\b}}?", value, line)
            found[f"systemd: {unit.name}"] = shlex.split(line.replace("%i", "orders").replace("%d", "/run"))
    return found


def test_every_place_has_a_command() -> None:
    assert len(command_lines()) == 1 + 3 + 7 + 5


def parsed(words: list[str]) -> dict[str, Any]:
    """Parameters of the command of a command line. A usage error raises."""
    group: Any = typer.main.get_command(app)
    context = group.make_context("lakequeue", list(words))
    name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
    return dict(command.make_context(name, rest, parent=context).params)


@pytest.mark.parametrize("place", command_lines())
def test_each_command_line_is_accepted(place: str) -> None:
    parsed(command_lines()[place])


@pytest.mark.parametrize("place", [place for place in command_lines() if "serve" in command_lines()[place]])
def test_no_server_makes_the_root_anew_after_its_store_was_emptied(place: str) -> None:
    assert parsed(command_lines()[place])["create_root"] is False


@pytest.mark.parametrize("place", [place for place in command_lines() if "consume" in command_lines()[place]])
def test_the_option_of_a_consumer_that_delivers_fits_behind_the_handler(place: str) -> None:
    page = (DEPLOY.parent / "docs" / "operation" / "deploying.md").read_text(encoding="utf-8")
    [unit] = re.findall(r"^Environment=OPTIONS=(.+)$", page, re.M)
    [given] = re.findall(r"write `(.+)` behind", page)
    assert unit == given
    line = command_lines()[place]
    behind = line.index("work:handle") + 1
    assert parsed([*line[:behind], given, *line[behind:]])["batch"] == 1000


def test_a_wrong_option_would_be_noticed() -> None:
    with pytest.raises(Exception, match="--hots"):
        parsed(["serve", "--hots", "0.0.0.0"])


def test_probes_and_ports_are_those_of_the_server_and_the_consumer() -> None:
    server, consumer = containers()["server"], containers()["consumer"]
    assert server["ports"] == [{"name": "http", "containerPort": PORT}]
    assert server["readinessProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert f"--metrics-port={METRICS_PORT}" in consumer["args"]
    assert consumer["ports"] == [{"name": "metrics", "containerPort": METRICS_PORT}]
    assert consumer["readinessProbe"]["httpGet"] == {"path": "/metrics", "port": "metrics"}
    assert f"http://127.0.0.1:{PORT}/health" in (DEPLOY / "Containerfile").read_text()
    jobs = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    targets = [target for job in jobs for each in job["static_configs"] for target in each["targets"]]
    assert targets == [f"server:{PORT}", f"consumer:{METRICS_PORT}"]
    for place in "compose: consumer", "systemd: lakequeue-consume@.service":
        assert f"--metrics-port {METRICS_PORT}" in " ".join(command_lines()[place]), place


def test_the_page_starts_units_files_and_deployments_that_exist(tmp_path: Path) -> None:
    page = (DEPLOY.parent / "docs" / "operation" / "deploying.md").read_text(encoding="utf-8")
    assert CliRunner().invoke(app, ["deploy-files", str(tmp_path / "my-deploy")]).exit_code == 0
    for path in {*re.findall(r"my-deploy/[\w./-]*\w", page)} - {"my-deploy/mailer"}:
        made = path.endswith(("/keys.json", "/metrics-secret"))
        assert made or (tmp_path / path).exists(), path
    units = {re.sub(r"@.*?(\.service)?$", "@.service", name) for name in re.findall(r"\blakequeue-[\w@.]+", page)}
    known = {unit.name for unit in UNITS}
    deployed = {each["metadata"]["name"] for each in MANIFESTS if "metadata" in each}
    assert not {name for name in units if not {name, f"{name}.service"} & (known | deployed)}
    services = {line.split()[0] for line in re.findall(r"compose\.yaml (?:run --rm|logs|exec)(?: -T)? (.+)", page)}
    assert services and services <= COMPOSE["services"].keys()


def test_the_line_for_own_handlers_changes_the_queue_and_the_handler_alone(tmp_path: Path) -> None:
    page = (DEPLOY.parent / "docs" / "operation" / "deploying.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^(sed -i 's/orders/.+?systemd/\*)$", page, re.M | re.S)
    folder = tmp_path / "my-deploy"
    assert CliRunner().invoke(app, ["deploy-files", str(folder)]).exit_code == 0
    files = [folder / "compose.yaml", *folder.glob("kubernetes/*.yaml"), *folder.glob("systemd/*")]
    before = [path.read_text() for path in files]
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
    for path, text in zip(files, before, strict=True):
        queues = re.sub(r"(?<![\w/-])orders\b", "mails", text).replace("work:handle", "mailer.worker:deliver")
        expected = queues.replace("work.py:/work/work.py", "mailer:/work/mailer")
        assert path.read_text() == expected, path.name


def test_nothing_runs_as_root_or_may_write_to_its_image() -> None:
    assert "\nUSER 10001" in (DEPLOY / "Containerfile").read_text()
    for container in containers().values():
        assert container["securityContext"]["readOnlyRootFilesystem"]
    for name in "server", "consumer", "compactor":
        assert COMPOSE["services"][name]["read_only"] and COMPOSE["services"][name]["cap_drop"] == ["ALL"]
    for unit in UNITS:
        if unit.suffix == ".service":
            assert "\nUser=lakequeue\n" in unit.read_text()


def test_each_unit_makes_the_directory_of_the_root() -> None:
    """It may start before the server; systemd refuses units whose ``ReadWritePaths`` are missing."""
    for unit in UNITS:
        if unit.suffix == ".service":
            text = unit.read_text()
            assert "\nStateDirectory=lakequeue\nStateDirectoryMode=0700\n" in text and "ReadWritePaths" not in text


@pytest.mark.parametrize(
    ("generated", "used"),
    [
        ("images", r"\bimage: (\S+)"),
        ("configMapGenerator", r"\bconfigMapRef: \{name: ([\w-]+)\}"),
        ("secretGenerator", r"\bsecretName: ([\w-]+)"),
    ],
)
def test_kustomize_finds_the_names_that_it_replaces(generated: str, used: str) -> None:
    """It renders others as they are, without an error."""
    [kustomization] = [each for each in MANIFESTS if each["kind"] == "Kustomization"]
    texts = "".join((DEPLOY / "kubernetes" / name).read_text() for name in kustomization["resources"])
    assert {each["name"] for each in kustomization[generated]} == set(re.findall(used, texts))


def test_the_scaler_uses_a_metric_that_is_served(known: Known) -> None:
    [scaler] = [each for each in MANIFESTS if each["kind"] == "ScaledObject"]
    [trigger] = scaler["spec"]["triggers"]
    assert problems(trigger["metadata"]["query"], known) == []
    [states] = re.findall(r'state=~"([^"]+)"', trigger["metadata"]["query"])
    needed = {"visible", "in_flight", "undecided"}
    assert {*states.split("|")} == needed, "handlers have those in flight, only a consumer decides the undecided"
    assert scaler["spec"]["scaleTargetRef"]["name"] in {
        each["metadata"]["name"] for each in MANIFESTS[:-1] if "metadata" in each
    }


def test_the_command_writes_all_that_compose_mounts(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--json", "deploy-files", str(tmp_path / "deploy")])
    assert done.exit_code == 0, done.output
    written = set(json.loads(done.stdout)["files"])
    mounted = {
        volume.split(":")[0].removeprefix("./")
        for service in COMPOSE["services"].values()
        for volume in service.get("volumes", [])
        if volume.startswith("./")
    }
    # what the operator makes
    assert mounted - written == {"keys.json", "metrics-secret"}
    assert {"alerts.yml", "grafana/lakequeue.json", "kubernetes/server.yaml"} <= written
    again = CliRunner().invoke(app, ["deploy-files", str(tmp_path / "deploy")])
    assert again.exit_code == 3 and "not empty" in again.output


def test_what_pip_compiled_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site-packages" / "deploy"
    (installed / "__pycache__").mkdir(parents=True)
    for name in "work.py", "__pycache__/work.cpython-311.pyc":
        (installed / name).touch()
    monkeypatch.setattr("lakequeue.cli.serve._PACKAGE", installed.parent)
    done = CliRunner().invoke(app, ["deploy-files", str(tmp_path / "mine")])
    assert done.stdout == f"1 file in {tmp_path / 'mine'}\n"
    assert [path.name for path in (tmp_path / "mine").rglob("*")] == ["work.py"]


def test_pages_that_name_dashboards_and_alerts_say_how_to_get_them_without_a_checkout(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["deploy-files", str(tmp_path / "deploy")]).exit_code == 0
    written = {path.name for path in (tmp_path / "deploy").rglob("*")}
    texts = [page.read_text(encoding="utf-8") for page in (DEPLOY.parent / "docs").rglob("*.md")]
    named = {text: re.findall(r"`conf/(?:grafana|prometheus)/([^`]+)`", text) for text in texts}
    pages = {text: set(files) for text, files in named.items() if files}
    assert len(pages) >= 2
    for text, files in pages.items():
        assert "lakequeue deploy-files DIR" in text and files <= written


@pytest.mark.clients  # for systemd, which .ci/run installs then
def test_systemd_finds_nothing_wrong_with_the_units() -> None:
    """Only the program that they start is not there; what it says about other units is the machine's."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, UNITS)], capture_output=True, text=True
    )
    told = [line for line in done.stderr.splitlines() if "lakequeue-" in line]
    absent = [line for line in told if "/opt/lakequeue/bin/lakequeue is not executable" in line]
    assert told == absent and len(absent) == sum(unit.suffix == ".service" for unit in UNITS), done.stderr


def test_the_rules_for_cron_jobs_name_those_of_the_manifests() -> None:
    page = (DEPLOY.parent / "docs" / "operation" / "alerts.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```yaml\n(.+?)^```", page, re.M | re.S)
    names = {each["metadata"]["name"] for each in MANIFESTS if each["kind"] == "CronJob"}
    for rule in yaml.safe_load(block):
        [name] = {*re.findall(r'cronjob="([^"]+)"', rule["expr"])}
        assert name in names and rule["expr"].count("(") == rule["expr"].count(")")


def test_copied_commands_begin_as_the_alias_of_the_deployment() -> None:
    page = (DEPLOY.parent / "docs" / "operation" / "alerts.md").read_text(encoding="utf-8")
    files = DEPLOY / "compose.yaml", DEPLOY / "kubernetes" / "server.yaml", *UNITS
    lines = "\n".join(path.read_text(encoding="utf-8") for path in files)
    prefixes = {*re.findall(r'--command-prefix=([^"\n]+)', lines)}
    assert len(prefixes) == 3 and prefixes == {*re.findall(r"`alias lakequeue='([^']+)'`", page)}
