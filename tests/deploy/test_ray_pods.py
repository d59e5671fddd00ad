"""The pods of Ray on Kubernetes: who reaches their ports, what their image has, where replicas find the weights."""

import re

import yaml  # type: ignore[import-untyped]  # it has no types of its own

from tests.deploy.shipped import REPO
from tests.deploy.test_kubernetes import BY_RAY, DEPLOY, pods_of, shipped, variables
from tests.server.tables import each_of


def test_ray_pods_read_the_same_volume() -> None:
    claim = shipped("kubernetes/weights/weights.yaml")[0]["metadata"]["name"]
    for name in BY_RAY:
        text = (DEPLOY / "ray" / name).read_text(encoding="utf-8")
        assert re.findall(r"claimName: (.+)", text) == [claim]


def test_rays_replicas_serve_the_model_that_the_job_fetches() -> None:
    """Each pod that has the volume finds it where the job put it, and asks nobody."""
    [fetching] = shipped("kubernetes/weights/weights.yaml")[1]["spec"]["template"]["spec"]["containers"]
    [service] = [one for one in shipped("ray/rayservice.yaml") if one["kind"] == "RayService"]
    for served in (service["spec"]["serveConfigV2"], (DEPLOY / "ray" / "serve.yaml").read_text(encoding="utf-8")):
        [application] = yaml.safe_load(served)["applications"]
        assert application["args"]["model"] == fetching["command"][-1]
    for name in BY_RAY:
        reading = [
            container
            for one in shipped(f"ray/{name}")
            for pod in pods_of(one)
            for container in pod["spec"]["containers"]
            if "models" in {mount["name"] for mount in container.get("volumeMounts", ())}
        ]
        assert len(reading) == 1, "the head has no card, and no replica"
        assert variables(reading[0])["HF_HOME"] == variables(fetching)["HF_HOME"]
        assert variables(reading[0])["HF_HUB_OFFLINE"] == "1"


@each_of("name", BY_RAY)
def test_no_port_of_ray_is_open_to_others(name: str) -> None:
    """By network: pods of the same label alone; an operator at the dashboard; everybody at Serve's proxy."""
    [policy] = [one["spec"] for one in shipped(f"ray/{name}") if one["kind"] == "NetworkPolicy"]
    labels = policy["podSelector"]["matchLabels"]
    for one in shipped(f"ray/{name}"):
        assert all(labels.items() <= pod["metadata"]["labels"].items() for pod in pods_of(one))
    assert policy["policyTypes"] == ["Ingress"]
    for rule in policy["ingress"]:
        ports = {port["port"] for port in rule.get("ports", ())}
        if rule.get("from") == [{"podSelector": {"matchLabels": labels}}]:
            assert not ports
        elif "from" in rule:
            [peer] = rule["from"]
            assert peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "kuberay-operator"}
            assert ports == {8265, 8000}
        else:
            assert ports == {8000}


def test_ray_asks_for_a_token() -> None:
    """KubeRay sets it in each container; a LeaderWorkerSet has it from a secret."""
    [service] = [one for one in shipped("ray/rayservice.yaml") if one["kind"] == "RayService"]
    assert service["spec"]["rayClusterConfig"]["authOptions"] == {"mode": "token"}
    [group] = [one for one in shipped("ray/leaderworkerset.yaml") if one["kind"] == "LeaderWorkerSet"]
    for pod in pods_of(group):
        env = {one["name"]: one for one in pod["spec"]["containers"][0]["env"]}
        assert env["RAY_AUTH_MODE"]["value"] == "token"
        assert "secretKeyRef" in env["RAY_AUTH_TOKEN"]["valueFrom"]


def test_the_image_of_rays_pods_has_what_they_need() -> None:
    image = (DEPLOY / "ray" / "Dockerfile").read_text(encoding="utf-8")
    [version] = re.findall(r"'ray\[serve\]==([\d.]+)'", image)
    assert f"\nray=={version}; " in (REPO / "constraints" / "cpu.txt").read_text(encoding="utf-8")
    assert "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=deploy.ray.proxy:middlewares" in image
    checkout = re.findall(r"^WORKDIR (.+)$", (REPO / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)[-1]
    assert f"PYTHONPATH={checkout} " in image
    for name in BY_RAY:
        for one in shipped(f"ray/{name}"):
            assert all(pod["spec"]["containers"][0]["workingDir"] == checkout for pod in pods_of(one))
    loaded = (DEPLOY / "ray" / "ascend.sh").read_text(encoding="utf-8")
    entry = (DEPLOY / "entrypoint.sh").read_text(encoding="utf-8")
    for script in ("ascend-toolkit/set_env.sh", "nnal/atb/set_env.sh", "--cxx_abi=1", "/usr/local/dcmi/libdcmi.so"):
        assert script in loaded and script in entry
