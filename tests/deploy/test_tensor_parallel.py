"""The examples of a server over several cards agree with its settings, with each other and with the doctor."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own

from configs.serve import EngineConfig
from configs.settings import load_config
from server.doctor.hccl import findings
from tests.deploy.test_kubernetes import (
    DEPLOY,
    assert_published,
    needs_kubectl,
    needs_schemas,
    objects,
    pod_of,
    shipped,
    text_of,
    variables,
)
from tests.server.doctor.trees import CONFIG, whole, write

OVERLAY = "npu-tensor-parallel"
CARD = "huawei.com/Ascend910"
SYSCTL = "net.ipv4.ip_local_reserved_ports"


def ranks(environment: dict[str, str]) -> int:
    return load_config([], environment).engine.tensor_parallel


@pytest.mark.process
@needs_kubectl
def test_a_pod_has_a_card_for_each_rank() -> None:
    pod, container = pod_of(objects(OVERLAY))
    _, plain = pod_of(objects("npu"))
    n = ranks({name: value for name, value in variables(container).items() if "TENSOR" in name})
    limits, requests = container["resources"]["limits"], container["resources"]["requests"]
    assert n > 1 and limits[CARD] == requests[CARD] == n
    for name in ("cpu", "memory"):
        assert int(re.sub("Gi", "", requests[name])) > int(re.sub("Gi", "", plain["resources"]["requests"][name]))
    assert requests["memory"] == limits["memory"]
    assert set(pod["securityContext"]) - {"sysctls"} == set(pod_of(objects("npu"))[0]["securityContext"])


@pytest.mark.process
@needs_kubectl
def test_what_the_overlay_does_not_speak_of_is_the_bases() -> None:
    found, base = objects(OVERLAY), objects("npu")
    assert found.keys() == base.keys()
    assert all(one == base[key] for key, one in found.items() if key[0] != "Deployment")
    (pod, container), (plain_pod, plain) = pod_of(found), pod_of(base)
    assert {name: one for name, one in container.items() if name not in ("env", "args", "resources")} == {
        name: one for name, one in plain.items() if name not in ("env", "args", "resources")
    }
    assert all(one in container["env"] for one in plain["env"])
    assert pod["volumes"] == plain_pod["volumes"]


@pytest.mark.process
@needs_kubectl
@needs_schemas
def test_what_kubectl_builds_keeps_to_the_schema(tmp_path: Path) -> None:
    built = yaml.safe_load_all(text_of(OVERLAY))
    assert assert_published(built, tmp_path / "built.yaml").count("Deployment") == 1


def reserved_by_a_pod() -> str:
    text = (DEPLOY / "kubernetes/tensor-parallel/kustomization.yaml").read_text(encoding="utf-8")
    [patch] = yaml.safe_load(text)["patches"]
    [sysctl] = yaml.safe_load(patch["patch"])["spec"]["template"]["spec"]["securityContext"]["sysctls"]
    assert sysctl["name"] == SYSCTL
    return str(sysctl["value"])


def composed() -> tuple[dict[str, Any], dict[str, Any]]:
    """The service of the file for one card, and what is added for several."""
    names = ("docker-compose.npu.yml", "docker-compose.tensor-parallel.yml")
    one, more = (
        yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))["services"]["pixelferry"] for name in names
    )
    return one, more


def test_a_composed_server_has_a_card_for_each_rank() -> None:
    """compose appends the devices of the second file to those of the first."""
    one, more = composed()
    devices = [*one["devices"], *more["devices"]]
    cards = [device for device in devices if re.match(r"/dev/davinci(\d|\$)", device)]
    assert len(set(cards)) == ranks(more["environment"]) == 2
    assert all(device.endswith(":rwm") for device in devices)
    for name in ("cpus", "memory", "pids"):
        bounds = [re.findall(r"\d+", str(part["deploy"]["resources"]["limits"][name]))[-1] for part in (one, more)]
        assert int(bounds[1]) > int(bounds[0])


def test_the_doctor_is_content_with_the_ports_that_they_keep(tmp_path: Path) -> None:
    machine = whole(tmp_path)
    config = CONFIG.__class__(model=CONFIG.model, engine=EngineConfig(tensor_parallel=2))
    for ports, verdict in (("", "warn"), (reserved_by_a_pod(), "ok"), (composed()[1]["sysctls"][SYSCTL], "ok")):
        write(tmp_path, "/proc/sys/net/ipv4/ip_local_reserved_ports", f"{ports}\n")
        [found] = [one for one in findings(machine, config) if one.check == "HCCL ports"]
        assert found.verdict == verdict, found


def test_ray_is_told_how_a_replica_gets_several_cards() -> None:
    """In a comment, as it stands: the flag and the resource have the same number."""
    text = (DEPLOY / "ray" / "serve.yaml").read_text(encoding="utf-8")
    [flag] = re.findall(r'--tensor-parallel, "(\d)"', text)
    [cards] = re.findall(r"#.*\{NPU: (\d)\}", text)
    assert flag == cards == "2"
    replica = shipped("ray/serve.yaml")[0]["applications"][0]["deployments"][1]
    assert replica["ray_actor_options"]["resources"] == {"NPU": 1}
