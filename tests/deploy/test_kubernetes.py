"""The overlays of Kubernetes, built as kubectl builds them: what they add to a base, and what has a published form.

Kinds of others (ScaledObject, ServiceMonitor, RayService, LeaderWorkerSet) have no schema here: of these the parts that
are Kubernetes' own are held against it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own

from configs.settings import load_config
from tests.deploy.shipped import REPO
from tests.tables import each_of

DEPLOY = REPO / "deploy"
BASES = ("npu", "cpu")
OVERLAYS = ("npu-autoscaled", "cpu-autoscaled")
BY_RAY = ("rayservice.yaml", "leaderworkerset.yaml")
CORE = {"v1", "apps/v1", "batch/v1", "networking.k8s.io/v1", "policy/v1", "autoscaling/v2"}
KUBECTL = shutil.which("kubectl")
SCHEMAS = REPO / "build" / "schemas"
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
needs_schemas = pytest.mark.skipif(
    not (SCHEMAS / "kubernetes_validate").is_dir(), reason="`make build/schemas` was not run"
)


@cache
def text_of(name: str) -> str:
    """What `kubectl apply -k` would send."""
    done = subprocess.run([str(KUBECTL), "kustomize", DEPLOY / "kubernetes" / name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(name: str) -> dict[tuple[str, str], Any]:
    """By kind and name, each anew."""
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text_of(name))}


def shipped(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / path).read_text(encoding="utf-8")))


def pod_of(found: dict[tuple[str, str], Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    pod = found["Deployment", "pixelferry"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    return pod, container


def variables(container: dict[str, Any]) -> dict[str, str]:
    """Those whose value stands in the manifest."""
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


# ---- the overlays


@pytest.mark.process
@needs_kubectl
@each_of("name", BASES)
def test_a_base_is_its_file(name: str) -> None:
    for one in shipped(f"kubernetes/{name}/pixelferry.yaml"):
        assert objects(name).pop((one["kind"], "pixelferry")) == one
    assert len(objects(name)) == 4


@pytest.mark.process
@needs_kubectl
@each_of("name", OVERLAYS)
def test_nobody_but_keda_says_how_many_pods_there_are(name: str) -> None:
    found = objects(name)
    deployment = found["Deployment", "pixelferry"]
    assert "replicas" not in deployment["spec"], "whoever applies it again would set it back"
    scaled = found["ScaledObject", "pixelferry"]["spec"]
    assert scaled["scaleTargetRef"] == {"name": deployment["metadata"]["name"]}
    assert scaled["minReplicaCount"] >= 1


@pytest.mark.process
@needs_kubectl
@each_of(("name", "profile"), list(zip(OVERLAYS, ("atlas", "cpu"), strict=True)))
def test_a_pod_more_is_asked_for_before_the_seats_are_taken(name: str, profile: str) -> None:
    """profile: that of its image; for CPUs it is the defaults."""
    [trigger] = objects(name)["ScaledObject", "pixelferry"]["spec"]["triggers"]
    assert int(trigger["metadata"]["threshold"]) == load_config(["--profile", profile], {}).engine.max_seqs * 3 / 4


@pytest.mark.process
@needs_kubectl
@each_of("name", OVERLAYS)
def test_pods_go_one_by_one_and_with_time_to_drain(name: str) -> None:
    found = objects(name)
    assert found["Deployment", "pixelferry"]["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
    }
    pod, container = pod_of(found)
    environment = {key: value for key, value in variables(container).items() if key == "PIXELFERRY_DRAIN_SECONDS"}
    drain = load_config([], environment).http.drain_seconds
    [_, slept] = container["lifecycle"]["preStop"]["exec"]["command"]
    assert drain > load_config([], {}).http.drain_seconds
    assert pod["terminationGracePeriodSeconds"] > drain + int(slept)


@pytest.mark.process
@needs_kubectl
@each_of(("name", "base"), list(zip(OVERLAYS, BASES, strict=True)))
def test_what_an_overlay_does_not_speak_of_stays(name: str, base: str) -> None:
    """Keys, probes, users and limits are those of the base, and so are Service, policy and budget."""
    found, plain = objects(name), objects(base)
    for key, one in plain.items():
        if key[0] != "Deployment":
            assert found[key] == one
    (pod, container), (plain_pod, plain_container) = pod_of(found), pod_of(plain)
    for part in set(plain_container) - {"env", "args", "volumeMounts"}:
        assert container[part] == plain_container[part], part
    for part in ("env", "volumeMounts"):
        assert all(one in container[part] for one in plain_container[part]), part
    for part in set(plain_pod) - {"containers", "volumes", "terminationGracePeriodSeconds"}:
        assert pod[part] == plain_pod[part], part
    if name == "cpu-autoscaled":
        assert (container["args"], pod["volumes"]) == (plain_container["args"], plain_pod["volumes"])


@pytest.mark.process
@needs_kubectl
def test_weights_come_once_and_are_read_by_all() -> None:
    """One name of the model, one volume, one place in it; pods ask nobody, and the job has a way out."""
    found = objects("npu-autoscaled")
    pod, container = pod_of(found)
    job = found["Job", "pixelferry-weights"]["spec"]["template"]["spec"]
    [fetching] = job["containers"]
    assert container["args"] == ["--model", fetching["command"][-1]]
    assert fetching["image"] == container["image"], "what is built for the pods has the hub's client"
    claim = found["PersistentVolumeClaim", "pixelferry-models"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    [read] = [one["persistentVolumeClaim"] for one in pod["volumes"] if one["name"] == "models"]
    [written] = [one["persistentVolumeClaim"] for one in job["volumes"] if one["name"] == "models"]
    assert read == {"claimName": claim["metadata"]["name"], "readOnly": True}
    assert written == {"claimName": claim["metadata"]["name"]}
    assert variables(container)["HF_HOME"] == variables(fetching)["HF_HOME"]
    assert variables(container)["HF_HUB_OFFLINE"] == "1" and "HF_HUB_OFFLINE" not in variables(fetching)
    for one in (container, fetching):
        [mount] = [mount for mount in one["volumeMounts"] if mount["name"] == "models"]
        assert variables(one)["HF_HOME"].startswith(f"{mount['mountPath']}/")
    policy = found["NetworkPolicy", "pixelferry-weights"]["spec"]
    labels = found["Job", "pixelferry-weights"]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"] == labels != {"app.kubernetes.io/name": "pixelferry"}
    assert policy["ingress"] == [] and 443 in {port["port"] for port in policy["egress"][0]["ports"]}


# ---- published forms


def pods_of(one: Any) -> Iterator[dict[str, Any]]:
    """Every template of a pod below, whoever's kind it is."""
    if isinstance(one, dict):
        if "containers" in one.get("spec", {}):
            yield one
        for value in one.values():
            yield from pods_of(value)
    elif isinstance(one, list):
        for value in one:
            yield from pods_of(value)


def core_of(one: dict[str, Any]) -> list[dict[str, Any]]:
    """The object where its kind is Kubernetes' own, else its parts that are."""
    if one["apiVersion"] in CORE:
        return [one]
    parts = [
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": f"pod-{n}"}, "template": template}
        for n, template in enumerate(pods_of(one))
    ]
    if one["kind"] == "ScaledObject":
        spec = one["spec"]
        parts.append({
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "keda-hpa-pixelferry"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", **spec["scaleTargetRef"]},
                "minReplicas": spec["minReplicaCount"],
                "maxReplicas": spec["maxReplicaCount"],
                "behavior": spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"],
            },
        })  # fmt: skip
    return parts


def validated(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", str(path)]
    env = {**os.environ, "PYTHONPATH": str(SCHEMAS)}
    return subprocess.run(command, env=env, capture_output=True, text=True)


def assert_published(objects: Iterable[dict[str, Any]], path: Path) -> list[str]:
    """Their kinds, those of parts among them."""
    parts = [part for one in objects for part in core_of(one)]
    path.write_text(yaml.safe_dump_all(parts))
    done = validated(path)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "WARN" not in said, said
    assert said.count(" passed for resource ") == len(parts)
    return [part["kind"] for part in parts]


@pytest.mark.process
@needs_schemas
def test_each_file_keeps_to_the_schema_of_its_kinds(tmp_path: Path) -> None:
    named = [path for path in sorted((DEPLOY / "kubernetes").glob("*/*.yaml")) if path.stem != "kustomization"]
    files = [path.relative_to(DEPLOY) for path in [*named, *(DEPLOY / "ray" / name for name in BY_RAY)]]
    kinds = assert_published((one for path in files for one in shipped(str(path))), tmp_path / "files.yaml")
    assert set(kinds) == {
        "Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget", "PersistentVolumeClaim", "Job", "PodTemplate",
        "HorizontalPodAutoscaler",
    }  # fmt: skip
    assert kinds.count("PodTemplate") == 4, "heads and workers of both"


@pytest.mark.process
@needs_kubectl
@needs_schemas
def test_what_kubectl_builds_keeps_to_it(tmp_path: Path) -> None:
    built = (one for name in OVERLAYS for one in yaml.safe_load_all(text_of(name)))
    assert assert_published(built, tmp_path / "built.yaml").count("Deployment") == 2


@pytest.mark.process
@needs_schemas
@each_of("kind", ["PodTemplate", "HorizontalPodAutoscaler"])
def test_a_misspelt_field_is_seen(kind: str, tmp_path: Path) -> None:
    scaled = shipped("kubernetes/autoscaling/scaledobject.yaml")
    [part, *_] = [p for one in [*scaled, *shipped("ray/rayservice.yaml")] for p in core_of(one) if p["kind"] == kind]
    text = yaml.safe_dump(part)
    for right, wrong in (("periodSeconds", "periodSecond"), ("workingDir", "workDir")):
        text = text.replace(right, wrong)
    (tmp_path / "spoiled.yaml").write_text(text)
    done = validated(tmp_path / "spoiled.yaml")
    assert done.returncode == 1 and "did not validate for resource" in done.stdout + done.stderr
