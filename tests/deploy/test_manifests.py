"""The examples of how to run a server agree with it and with each other; none is open to a network without a key."""

import re
import shlex
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own

from configs.serve import GIB
from configs.settings import load_config
from tests.deploy.shipped import REPO
from tests.server.tables import each_of

DEPLOY = REPO / "deploy"
PODS = ("kubernetes/npu/pixelferry.yaml", "kubernetes/cpu/pixelferry.yaml")
COMPOSE = ("docker-compose.yml", "docker-compose.npu.yml")
UNIT = DEPLOY / "pixelferry.service"
ANALYZE = shutil.which("systemd-analyze")
LABEL = {"app.kubernetes.io/name": "pixelferry"}


def objects(name: str) -> dict[str, Any]:
    """What a manifest holds, by kind."""
    found = list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))
    assert len({one["kind"] for one in found}) == len(found)
    return {one["kind"]: one for one in found}


def pod_of(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod, and its one container."""
    pod = objects(name)["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    return pod, container


@each_of("name", PODS)
def test_a_pod_has_time_to_leave_the_service_and_to_drain(name: str) -> None:
    pod, container = pod_of(name)
    [program, seconds] = container["lifecycle"]["preStop"]["exec"]["command"]
    drain = load_config([], {}).http.drain_seconds
    assert program == "sleep" and pod["terminationGracePeriodSeconds"] > int(seconds) + drain


@each_of("name", PODS)
def test_a_pod_asks_for_keys_of_a_secret(name: str) -> None:
    """The file is read again when it changes; the key of the variable is Prometheus's. Neither stands in a manifest."""
    pod, container = pod_of(name)
    env = {one["name"]: one for one in container["env"]}
    secret = next(one["secret"] for one in pod["volumes"] if one["name"] == "keys")
    [mount] = [one for one in container["volumeMounts"] if one["name"] == "keys"]
    assert env["PIXELFERRY_API_KEY_FILE"]["value"] == f"{mount['mountPath']}/{secret['items'][0]['path']}"
    assert mount["readOnly"] and secret["defaultMode"] == 0o440 and pod["securityContext"]["fsGroup"] == 1000
    reference = env["PIXELFERRY_API_KEY"]["valueFrom"]["secretKeyRef"]
    assert reference == {"name": secret["secretName"], "key": "metrics"}
    assert "optional" not in secret and "Secret" not in objects(name)
    text = (DEPLOY / name).read_text()
    assert f"kubectl create secret generic {secret['secretName']} " in text
    assert "--from-literal=clients=" in text and "--from-literal=metrics=" in text


@each_of("name", PODS)
def test_what_stands_around_a_pod_selects_it(name: str) -> None:
    found = objects(name)
    assert set(found) == {"Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget"}
    _, container = pod_of(name)
    assert found["Deployment"]["spec"]["template"]["metadata"]["labels"] == LABEL
    assert found["Service"]["spec"]["selector"] == found["Service"]["metadata"]["labels"] == LABEL
    policy = found["NetworkPolicy"]["spec"]
    assert (
        policy["podSelector"]["matchLabels"] == found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == LABEL
    )
    [port] = container["ports"]
    assert [one["port"] for one in policy["ingress"][0]["ports"]] == [port["name"]]
    assert policy["policyTypes"] == ["Ingress", "Egress"] and policy["egress"] == []
    assert all(policy["ingress"][0]["from"]), "an empty one would be everybody"


def test_the_manifest_of_a_cpu_is_that_of_an_npu_but_for_the_machine() -> None:
    npu, cpu = map(objects, PODS)
    assert {kind: one for kind, one in npu.items() if kind != "Deployment"} == {
        kind: one for kind, one in cpu.items() if kind != "Deployment"
    }
    (npu_pod, npu_box), (cpu_pod, cpu_box) = map(pod_of, PODS)
    own = ("image", "args", "resources", "volumeMounts")
    assert {name: one for name, one in npu_box.items() if name not in own} == {
        name: one for name, one in cpu_box.items() if name not in own
    }
    npu_pod["securityContext"].pop("supplementalGroups")
    assert npu_pod["securityContext"] == cpu_pod["securityContext"] and cpu_pod["securityContext"]["runAsNonRoot"]
    assert not any("Ascend" in str(name) for name in cpu_box["resources"]["limits"])
    [shm] = [one["emptyDir"] for one in cpu_pod["volumes"] if one["name"] == "shm"]
    assert int(shm["sizeLimit"].removesuffix("Gi")) * GIB > load_config(["--profile", "cpu"], {}).shm.pool_bytes
    assert set(cpu_box["resources"]["limits"]) == {"cpu", "memory"}


def test_prometheus_operator_finds_the_service_and_has_its_key() -> None:
    monitor = yaml.safe_load((DEPLOY / "kubernetes/monitoring/servicemonitor.yaml").read_text())
    [endpoint] = monitor["spec"]["endpoints"]
    for name in PODS:
        service = objects(name)["Service"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        key = next(one for one in pod_of(name)[1]["env"] if one["name"] == "PIXELFERRY_API_KEY")
        assert endpoint["authorization"]["credentials"] == key["valueFrom"]["secretKeyRef"]


def with_keys(text: str) -> str:
    """A compose file as it is when what it says of keys is uncommented."""
    lines = re.findall(
        r"^ *# (?:environment:|  PIXELFERRY_API|secrets:|  - pix|  pix|    file:).*$", text, re.MULTILINE
    )
    assert len(lines) == 7
    for line in lines:
        text = text.replace(line, line.replace("# ", "", 1), 1)
    return text


@each_of("name", COMPOSE)
def test_a_composed_server_is_this_machines_alone_and_bounded(name: str) -> None:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    service = yaml.safe_load(text)["services"]["pixelferry"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    limits = service["deploy"]["resources"]["limits"]
    assert set(limits) == {"cpus", "memory", "pids"}
    [memory] = re.findall(r":-(\d+)g", limits["memory"])
    assert int(memory) > int(service["shm_size"].removesuffix("gb")), "shared memory counts, too"
    opened = yaml.safe_load(with_keys(text))
    assert opened["services"]["pixelferry"]["environment"]["PIXELFERRY_API_KEY_FILE"] == "/run/secrets/pixelferry-keys"
    assert opened["services"]["pixelferry"]["secrets"] == list(opened["secrets"]) == ["pixelferry-keys"]


def unit() -> RawConfigParser:
    found = RawConfigParser(strict=False)
    found.optionxform = str  # type: ignore[assignment,method-assign]  # as configparser's own pages have it
    found.read(UNIT)
    return found


def test_the_units_settings_are_taken(tmp_path: Path) -> None:
    """And it ends a server as one wants to be ended."""
    service = unit()["Service"]
    program, command, *flags = shlex.split(service["ExecStart"])
    keys = flags[flags.index("--api-key-file") + 1]
    (tmp_path / "keys").write_text("sk-1\n")
    config = load_config([str(tmp_path / "keys") if flag == keys else flag for flag in flags], {})
    assert (Path(program).name, command, config.http.host) == ("pixelferry", "serve", "127.0.0.1")
    assert config.http.api_key_file is not None
    assert service["KillMode"] == "mixed" and int(service["TimeoutStopSec"]) > config.http.drain_seconds
    assert service["User"] == "pixelferry" and service["MemoryMax"]


@pytest.mark.skipif(ANALYZE is None, reason="systemd is not installed")
def test_systemd_itself_takes_the_unit(tmp_path: Path) -> None:
    def said(text: str) -> str:
        (tmp_path / UNIT.name).write_text(text)
        command = [str(ANALYZE), "verify", str(tmp_path / UNIT.name)]
        return subprocess.run(command, capture_output=True, text=True).stderr

    here = UNIT.read_text().replace("/opt/pixelferry/bin/pixelferry", "/bin/true")
    assert said(here) == ""
    assert "KilMode" in said(here.replace("KillMode", "KilMode"))


def test_the_image_runs_as_a_number() -> None:
    """Kubernetes cannot know of a name whether it is root's."""
    assert re.findall(r"^USER (.*)$", (REPO / "Dockerfile").read_text(), re.MULTILINE) == ["1000"]


PAGES = [*sorted(REPO.glob("docs/*.md")), REPO / "README.md", REPO / "README.zh.md", REPO / "Dockerfile"]


@each_of("page", PAGES, ids=lambda page: page.name)
def test_no_command_to_copy_opens_a_server_without_a_key(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if re.search(r"--host (0\.0\.0\.0|::)", line) and line.startswith("    "):
            assert "--api-key" in line or "PIXELFERRY_API_KEY" in line, line
        for published in re.findall(r" (?:-p|--publish)[ =](\S+)", line):
            assert published.startswith("127.0.0.1:"), line
        assert "--network host" not in line and "--net=host" not in line, line
