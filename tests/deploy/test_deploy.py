"""deploy/: what cannot be run here is parsed, and compared with our programs: commands, flags,
ports, paths. So nothing in it can fall behind them."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pumpline import __version__
from pumpline.core.text import flags
from pumpline.core.text.flags import Flag
from pumpline.nsqadmin.options import FLAGS as NSQADMIN_FLAGS
from pumpline.nsqadmin.options import NsqadminOptions
from pumpline.nsqd.options import FLAGS as NSQD_FLAGS
from pumpline.nsqd.options import Options as NsqdOptions
from pumpline.nsqlookupd.options import FLAGS as NSQLOOKUPD_FLAGS
from pumpline.nsqlookupd.options import NsqlookupdOptions
from pyspark_nsq.pipelines import archive

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PROJECT = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
FLAGS: dict[str, tuple[Flag, ...]] = {
    "nsqd": NSQD_FLAGS,
    "nsqlookupd": NSQLOOKUPD_FLAGS,
    "nsqadmin": NSQADMIN_FLAGS,
}
OPTIONS = {"nsqd": NsqdOptions, "nsqlookupd": NsqlookupdOptions, "nsqadmin": NsqadminOptions}
PORTS = {"nsqd": {4150, 4151}, "nsqlookupd": {4160, 4161}, "nsqadmin": {4171}}
PROBES = {"nsqd": {"/ping", "/ready"}, "nsqlookupd": {"/ping"}, "nsqadmin": {"/ping"}}
COMPOSE = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())
OTHERS = {"prometheus", "grafana"}  # images of others


def check_command(command: list[str]) -> str:
    """The program; it takes all its flags, with the addresses that everything else goes by."""
    program, *arguments = command
    assert program in PROJECT["scripts"]
    parsed = flags.parse(FLAGS[program], arguments)
    assert not parsed.rest, parsed.rest
    assert not {"tcp-address", "http-address"} & parsed.values.keys()
    return program


# -- Docker ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(COMPOSE["services"].keys() - OTHERS - {"archive"}))
def test_a_service_of_compose_is_a_program_of_ours_on_its_own_ports(name: str) -> None:
    service = COMPOSE["services"][name]
    program = check_command(service["command"])
    published = [each.split(":") for each in service["ports"]]
    assert {int(inside) for *_, inside in published} == PORTS[program]
    assert {host for host, *_ in published} == {"127.0.0.1"}  # nothing protects them
    assert service["read_only"] and service["cap_drop"] == ["ALL"]


def test_the_archive_of_compose_is_a_pipeline_that_takes_its_flags() -> None:
    words = COMPOSE["services"]["archive"]["command"]
    assert words[:3] == ["pumpline", "pipeline", "archive"]
    parser = ArgumentParser()
    archive.arguments(parser)
    options = parser.parse_args(words[3:])
    assert options.lookupd == "nsqlookupd:4161"


def test_services_of_compose_are_found_by_the_names_that_others_know() -> None:
    services = COMPOSE["services"]
    text = (DEPLOY / "docker/compose.yaml").read_text()
    for name, port in re.findall(r"=([a-z][\w-]*):(\d+)", text):
        assert int(port) in PORTS[services[name]["command"][0]]
    scraped = yaml.safe_load((DEPLOY / "docker/prometheus.yml").read_text())["scrape_configs"]
    for job in scraped:
        for target in job["static_configs"][0]["targets"]:
            name, port = target.split(":")
            assert services[name]["command"][0] == job["job_name"]
            assert int(port) in PORTS[job["job_name"]]


def test_files_that_compose_mounts_exist() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "docker" / source).is_file(), source
            else:
                assert source in COMPOSE["volumes"]


def test_nsqd_has_time_to_drain_before_docker_kills_it() -> None:
    for name in ("nsqd-1", "nsqd-2"):
        service = COMPOSE["services"][name]
        given = flags.parse(NSQD_FLAGS, service["command"][1:]).values
        grace_s = int(service["stop_grace_period"].removesuffix("s"))
        assert grace_s * 1_000_000_000 > given["drain-timeout"]


def test_the_image_has_what_is_copied_runs_as_nobody_and_tells_its_health() -> None:
    text = (DEPLOY / "docker/Dockerfile").read_text()
    kept = (DEPLOY.parent / ".dockerignore").read_text()
    for line in re.findall(r"^COPY (.*)", text, re.MULTILINE):
        *sources, _ = line.split()
        for source in sources:
            assert (DEPLOY.parent / source).exists(), source
            assert f"!{source}" in kept, source
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[2:]
    assert [stage for stage in stages if "RUN" in stage]
    for stage in stages:
        users = re.findall(r"^USER (\w+)", stage, re.MULTILINE)
        assert users[-1:] in ([], ["pumpline"])
    assert "127.0.0.1:4151/ping" in text
    [exposed] = re.findall(r"^EXPOSE (.*)", text, re.MULTILINE)
    assert {int(port) for port in exposed.split()} == set().union(*PORTS.values())


# -- systemd --------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", FLAGS)
def test_a_unit_starts_a_program_of_ours_with_a_config_file_that_it_takes(program: str) -> None:
    unit = (DEPLOY / f"systemd/{program}.service").read_text()
    [line] = re.findall(r"^ExecStart=(.*)", unit, re.MULTILINE)
    path, *arguments = shlex.split(line)
    assert check_command([Path(path).name, *arguments]) == program
    given = flags.parse(FLAGS[program], arguments).values
    config = Path(given["config"])
    assert config.parent == Path("/etc/pumpline")
    values = tomllib.loads((DEPLOY / "systemd" / config.name).read_text())
    assert not flags.unknown_keys(FLAGS[program], values)
    options: Any = OPTIONS[program].from_sources(given, values)
    addresses = [options.http_address, *([options.tcp_address] if program != "nsqadmin" else [])]
    assert {int(address.rpartition(":")[2]) for address in addresses} == PORTS[program]
    if program == "nsqd":
        [limit] = re.findall(r"^TimeoutStopSec=(\d+)s", unit, re.MULTILINE)
        assert int(limit) * 1_000_000_000 > options.drain_timeout_ns


@pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze was not found (package systemd)"
)
@pytest.mark.parametrize("program", FLAGS)
def test_systemd_takes_the_unit(program: str, tmp_path: Path) -> None:
    unit = (DEPLOY / f"systemd/{program}.service").read_text()
    copy = tmp_path / f"{program}.service"  # with a program that exists here
    copy.write_text(unit.replace("/opt/pumpline/bin", str(Path(sys.executable).parent)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False
    )
    told = [line for line in done.stderr.splitlines() if program in line]
    assert not told and done.returncode == 0, done.stderr


# -- Kubernetes -----------------------------------------------------------------------------------


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / f"kubernetes/{name}.yaml").read_text()))


def of_kind(documents: list[dict[str, Any]], *kinds: str) -> Iterator[dict[str, Any]]:
    return (each for each in documents if each["kind"] in kinds)


@pytest.mark.parametrize("program", FLAGS)
def test_a_pod_runs_a_program_of_ours_with_its_ports_and_probes(program: str) -> None:
    documents = manifests(program)
    [owner] = of_kind(documents, "StatefulSet", "Deployment")
    pod = owner["spec"]["template"]
    [container] = pod["spec"]["containers"]
    assert check_command([*container["command"], *container["args"]]) == program
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert set(named.values()) == PORTS[program]
    for service in of_kind(documents, "Service"):
        for port in service["spec"]["ports"]:
            assert named[port["name"]] == port["port"]
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container.get(probe, {}).get("httpGet")
        if asked:
            assert asked["path"] in PROBES[program] and asked["port"] == "http"
    for budget in of_kind(documents, "PodDisruptionBudget"):
        assert budget["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(named["http"])
    assert pod["spec"]["securityContext"]["runAsNonRoot"]


def test_nsqd_of_kubernetes_is_asked_whether_it_is_ready_and_drains_in_time() -> None:
    [owner] = of_kind(manifests("nsqd"), "StatefulSet")
    pod = owner["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    stop = " ".join(container["lifecycle"]["preStop"]["exec"]["command"])
    [seconds] = re.findall(r"/drain\?timeout=(\d+)s", stop)
    assert int(seconds) < pod["terminationGracePeriodSeconds"]
    [claim] = owner["spec"]["volumeClaimTemplates"]
    [mount] = container["volumeMounts"]
    assert mount["name"] == claim["metadata"]["name"]
    assert f"--data-path={mount['mountPath']}" in container["args"]


def test_pods_of_kubernetes_know_each_other_by_names_that_exist() -> None:
    sets = {
        owner["metadata"]["name"]: owner["spec"]
        for program in FLAGS
        for owner in of_kind(manifests(program), "StatefulSet")
    }
    for program in FLAGS:
        text = (DEPLOY / f"kubernetes/{program}.yaml").read_text()
        for owner, number, service, port in re.findall(r"=(\w+)-(\d)\.(\w+):(\d+)", text):
            assert sets[owner]["serviceName"] == service
            assert int(number) < sets[owner]["replicas"]
            assert int(port) in PORTS[owner]


def test_the_manifests_are_all_listed_with_the_version_that_this_is() -> None:
    listed = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())
    files = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")}
    assert {*listed["resources"], "kustomization.yaml"} == files
    [image] = listed["images"]
    assert image["newTag"] == __version__


def test_the_drain_of_kubernetes_works(tmp_path: Path) -> None:
    """The very command, against a real nsqd."""
    from tests.kit.daemons import Nsqd

    [owner] = of_kind(manifests("nsqd"), "StatefulSet")
    [container] = owner["spec"]["template"]["spec"]["containers"]
    _, *words = container["lifecycle"]["preStop"]["exec"]["command"]
    with Nsqd(tmp_path / "data") as nsqd:
        here = [word.replace("127.0.0.1:4151", nsqd.http_address) for word in words]
        subprocess.run([sys.executable, *here], check=True, timeout=60)
        assert nsqd.process.wait(60) == 0
