"""docker-compose.yml and .env.example against the specification's schema and the settings."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from controlplane.settings import Env
from controlplane.supervisor.layout import Layout
from controlplane.supervisor.processes import Environments, Site, platform
from workers.schedule import SCHEDULE

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z_]+)")
# What docker-compose.yml sets itself, differently for each process.
SET_BY_COMPOSE = {
    "DATABASE_URL",
    "REDIS_URL",
    "FARRIER_OWNER_DATABASE_URL",
    "FARRIER_DIRECTOR_KEY",
    "FARRIER_AUDIT_KEY",
}
# The image fixes where state lies; failpoints are for tests alone; nodes there find their own GPUs.
NOT_IN_COMPOSE = {"FARRIER_HOME", "FARRIER_FAILPOINTS", "FARRIER_HARDWARE"}
# Read by the Makefile's tools, the images' build and the tests, not by the settings.
TOOLS = {"FARRIER_TORCH", "TIMESCALE_URL", "PIP_EXTRA_INDEX_URL"}
SERVICES = {
    "caddy", "edge-ca", "db", "broker", "prepare", "web", "live", "worker", "jobs", "beat", "node-1", "node-2",
}  # fmt: skip


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert isinstance(loaded, dict)
    return loaded


def settings_variables() -> dict[str, Any]:
    """Environment variable → default, of the settings."""
    return {str(field.alias): field.default for field in Env.model_fields.values()}


def example_variables() -> dict[str, str]:
    """Variable → value, commented out or not, of .env.example."""
    rows = re.findall(r"^#?([A-Z][A-Z0-9_]+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE)
    names = [name for name, _ in rows]
    assert len(names) == len(set(names)), "a variable stands twice in .env.example"
    return dict(rows)


def test_compose_file_follows_the_specification(compose: dict[str, Any]) -> None:
    schema = json.loads((ROOT / "tests/packaging/compose-spec/schema.json").read_text())
    # Younger than the schema at hand, and valid since: the top-level name of the project.
    checked = {key: value for key, value in compose.items() if key != "name"}
    validator = jsonschema.Draft201909Validator(schema)
    assert [error.message for error in validator.iter_errors(checked)] == []
    assert not validator.is_valid({"services": {"web": {"imagee": "x"}}})


def test_compose_describes_the_whole_deployment(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == SERVICES
    for name, service in compose["services"].items():
        for dependency, how in service.get("depends_on", {}).items():
            assert dependency in SERVICES, name
            healthy = how["condition"] == "service_healthy"
            assert not healthy or "healthcheck" in compose["services"][dependency], f"{dependency} has no health check"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (ROOT / source).is_file(), f"{name}: {source}"


def test_somebody_takes_from_every_queue(compose: dict[str, Any], tmp_path: Path) -> None:
    ticks = {entry["options"]["queue"] for entry in SCHEDULE.values()}
    asked = {"default", *ticks}
    assert asked == queues(*(compose["services"][name]["command"] for name in ("worker", "jobs")))
    layout = Layout(tmp_path, ROOT)
    layout.prepare()
    specs = platform(Site(layout, Environments({}, {}, {}), "127.0.0.1", 8700, 8710, 3))
    assert asked == queues(*(spec.command for spec in specs if spec.name in ("worker", "jobs")))


def queues(*commands: Sequence[str]) -> set[str]:
    """What workers with these command lines take from."""
    return {queue for command in commands for queue in command[command.index("-Q") + 1].split(",")}


def test_director_key_and_owner_role_stay_with_the_workers(compose: dict[str, Any]) -> None:
    for name in ("web", "live", "beat", "node-1", "node-2", "caddy"):
        service = compose["services"][name]
        assert "FARRIER_OWNER_DATABASE_URL" not in service.get("environment", {}), name
        assert not any(volume.startswith(("keys:", "home:")) for volume in service.get("volumes", [])), name
    for name in ("worker", "jobs", "prepare"):
        assert "FARRIER_OWNER_DATABASE_URL" in compose["services"][name]["environment"]


def test_compose_hands_on_every_setting(compose: dict[str, Any]) -> None:
    handed_on = set(compose["services"]["worker"]["environment"])
    assert handed_on == set(settings_variables()) - NOT_IN_COMPOSE
    assert handed_on >= SET_BY_COMPOSE


def test_env_example_is_complete_and_says_the_defaults() -> None:
    example, settings = example_variables(), settings_variables()
    used_by_compose = set(VARIABLE.findall((ROOT / "docker-compose.yml").read_text()))
    assert set(example) == set(settings) | used_by_compose | TOOLS
    for name, default in settings.items():
        if name == "FARRIER_HOME":
            assert Path(default) == ROOT / example[name]
            continue
        says = example[name]
        assert says == (
            "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
        ), name


def test_env_example_can_be_used_as_it_is(tmp_path: Path) -> None:
    """Filled in as its first part asks, the settings accept every line of it."""
    lines = [
        line for line in (ROOT / ".env.example").read_text().splitlines() if re.match(r"^#?[A-Z][A-Z0-9_]+=.", line)
    ]
    environment = dict(line.lstrip("#").split("=", 1) for line in lines)
    code = "from controlplane.settings import ENV; print(len(ENV.model_fields_set))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(set(environment) & set(settings_variables()))


def test_caddyfile_routes_like_make_up(tmp_path: Path) -> None:
    from controlplane.supervisor.edge import LIVE_PATHS, find_caddy

    text = (ROOT / "docker/Caddyfile").read_text()
    assert f"@live path {' '.join(LIVE_PATHS)}\n" in text
    done = subprocess.run(
        [find_caddy(), "validate", "--adapter", "caddyfile", "--config", str(ROOT / "docker/Caddyfile")],
        env={"FARRIER_ORIGIN": "https://farrier.localhost:8700", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_dockerfile_copies_what_is_there() -> None:
    text = (ROOT / "docker/Dockerfile").read_text()
    sources = [word for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for word in line.split()]
    assert len(sources) > 10
    missing = [source for source in sources if not (ROOT / source).exists()]
    assert missing == []
    copied = {source for source in sources if (ROOT / source).is_dir()}
    assert {"apps", "controlplane", "workers", "node", "aifb", "protocol"} <= copied


@pytest.mark.parametrize(
    "script",
    [
        ".ci/run",
        "docker/create-roles.sh",
        "requirements/find-python",
        "requirements/find-chromium",
        "requirements/lock",
    ],
)
def test_scripts_are_valid_bash(script: str) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run([bash, "-n", str(ROOT / script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "set -euo pipefail" in (ROOT / script).read_text()
