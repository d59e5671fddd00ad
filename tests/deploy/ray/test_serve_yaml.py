"""The file that an operator deploys: Serve's own schema takes it, and its numbers fit a server's."""

import json
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own

from configs.settings import load_config
from tests.deploy.shipped import REPO

TEXT = (REPO / "deploy/ray/serve.yaml").read_text(encoding="utf-8")
CONFIG = yaml.safe_load(TEXT)
[APPLICATION] = CONFIG["applications"]
SERVER = load_config(APPLICATION["args"]["server"], {}).http


def deployment(name: str) -> dict[str, Any]:
    [found] = [one for one in APPLICATION["deployments"] if one["name"] == name]
    assert isinstance(found, dict)
    return found


def test_serve_holds_nothing_back_that_a_server_takes() -> None:
    replica = deployment("Replica")
    assert replica["max_ongoing_requests"] >= SERVER.max_requests
    most = replica["autoscaling_config"]["max_replicas"] * replica["max_ongoing_requests"]
    assert deployment("Ingress")["num_replicas"] * deployment("Ingress")["max_ongoing_requests"] >= most


def test_who_ends_has_time_to_drain() -> None:
    for name in ("Ingress", "Replica"):
        assert deployment(name)["graceful_shutdown_timeout_s"] >= SERVER.drain_seconds + 30


def test_every_knob_has_a_reason() -> None:
    bare = [line for line in TEXT.splitlines() if ":" in line and "#" not in line]
    known = {
        "http_options",
        "applications",
        "args",
        "deployments",
        "name",
        "import_path",
        "server",
        "ray_actor_options",
    }
    known |= {"port", "autoscaling_config", "min_replicas", "graceful_shutdown_timeout_s", "health_check_timeout_s"}
    assert {line.strip().lstrip("- ").partition(":")[0] for line in bare} <= known


def test_nobody_outside_reaches_serve_itself() -> None:
    assert CONFIG["http_options"]["host"] == "127.0.0.1"


@pytest.mark.ray
def test_serve_takes_it() -> None:
    schema = pytest.importorskip("ray.serve.schema", reason="run by `make test-ray`")
    taken = schema.ServeDeploySchema.model_validate(CONFIG)
    from deploy.ray import app

    options = app.Options.model_validate(taken.applications[0].args)
    built = app.app(options)
    assert {one["name"] for one in APPLICATION["deployments"]} == {"Ingress", "Replica"}
    assert built._bound_deployment.name == "Ingress"
    with pytest.raises(ValueError, match="--port: stands in"):
        app.app(app.Options(server=("--port=9",)))


def test_the_ray_service_deploys_the_same() -> None:
    """But for Serve's proxies: KubeRay asks one in each pod, on the pod's address, behind a NetworkPolicy."""
    service, _ = yaml.safe_load_all((REPO / "deploy/ray/rayservice.yaml").read_text(encoding="utf-8"))
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    proxies = {"proxy_location": "EveryNode", "http_options": {**CONFIG["http_options"], "host": "0.0.0.0"}}
    assert config == {**CONFIG, **proxies}
    cluster = service["spec"]["rayClusterConfig"]
    [workers] = cluster["workerGroupSpecs"]
    assert f"\nray=={cluster['rayVersion']};" in (REPO / "constraints/cpu.txt").read_text(encoding="utf-8")
    autoscaling = deployment("Replica")["autoscaling_config"]
    assert workers["maxReplicas"] == autoscaling["max_replicas"], "a pod has one card, and a replica takes one"
    assert cluster["enableInTreeAutoscaling"], "or no pod comes for a further replica"
    longest = max(deployment(name)["graceful_shutdown_timeout_s"] for name in ("Ingress", "Replica"))
    assert workers["template"]["spec"]["terminationGracePeriodSeconds"] > longest
    for group in (cluster["headGroupSpec"], workers):
        assert group["rayStartParams"].get("dashboard-host", "0.0.0.0") == "0.0.0.0", "the operator deploys through it"
        assert group["template"]["spec"]["shareProcessNamespace"], "its first process reaps"
    assert json.loads(workers["rayStartParams"]["resources"].strip("'")) == {"NPU": 1}
