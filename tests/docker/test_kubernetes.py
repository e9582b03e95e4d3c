"""The Kubernetes manifest: valid by its schemas, locked down, consistent with the command and its exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from command_options import option_names

from penstock.bench.commands import train as command_train
from penstock.pipelines.errors import EXIT_CACHE, EXIT_DATA, EXIT_RESOURCE, EXIT_USAGE

MANIFEST = Path(__file__).resolve().parent.parent.parent / "docker" / "kubernetes" / "train.yaml"
OLDEST, NEWEST = "1.31", kubernetes_validate.latest_version()


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFEST.read_text("utf-8")))


@pytest.fixture(scope="module")
def job(documents: list[dict[str, Any]]) -> dict[str, Any]:
    [found] = [document["spec"] for document in documents if document["kind"] == "Job"]
    return found


@pytest.fixture(scope="module")
def pod(job: dict[str, Any]) -> dict[str, Any]:
    return job["template"]["spec"]


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    [found] = pod["containers"]
    return found


def argument(container: dict[str, Any], name: str) -> str:
    [value] = [a.partition("=")[2] for a in container["args"] if a.startswith(f"--{name}=")]
    return value


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_schemas_accept_the_manifest(documents: list[dict[str, Any]], version: str) -> None:
    kinds = []
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)
        kinds.append(document["kind"])
    assert kinds == ["Service", "PersistentVolumeClaim", "Job"]


def test_only_permissions_that_training_needs_are_granted(pod: dict[str, Any], container: dict[str, Any]) -> None:
    """The restricted profile of Kubernetes' pod security standards, and a read-only root in addition."""
    whole, own = pod["securityContext"], container["securityContext"]
    assert whole["runAsNonRoot"] is True
    assert min(whole["runAsUser"], whole["runAsGroup"], whole["fsGroup"]) >= 10000
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own["allowPrivilegeEscalation"] is False
    assert own["privileged"] is False
    assert own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostIPC", "hostPID"} & pod.keys()
    assert not any("hostPath" in volume for volume in pod["volumes"])


def test_written_folders_are_volumes(pod: dict[str, Any], container: dict[str, Any]) -> None:
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {mount["name"] for mount in mounts.values()} == set(volumes)
    assert volumes[mounts["/dev/shm"]["name"]]["emptyDir"].keys() == {"medium", "sizeLimit"}
    assert volumes[mounts["/dev/shm"]["name"]]["emptyDir"]["medium"] == "Memory"
    assert "emptyDir" in volumes[mounts["/tmp"]["name"]]
    assert mounts["/data"]["readOnly"] is True
    assert volumes[mounts["/data"]["name"]]["persistentVolumeClaim"]["readOnly"] is True
    for name in ("checkpoint", "json"):
        folder = str(Path(argument(container, name)).parent)
        assert "readOnly" not in mounts[folder]
        assert "persistentVolumeClaim" in volumes[mounts[folder]["name"]]


def test_there_are_as_many_ranks_as_gpus(job: dict[str, Any], pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert str(job["completions"]) == str(job["parallelism"]) == argument(container, "nnodes")
    assert job["completionMode"] == "Indexed"
    resources = container["resources"]
    assert resources["requests"] == resources["limits"]  # guaranteed; and loaders count processors by the limit
    assert str(resources["limits"]["nvidia.com/gpu"]) == argument(container, "nproc-per-node")
    workers = int(argument(container, "workers")) * int(argument(container, "nproc-per-node"))
    assert workers <= int(resources["limits"]["cpu"])


def test_the_first_pod_is_found_by_its_name(documents: list[dict[str, Any]], container: dict[str, Any]) -> None:
    service, _, job = documents
    name = job["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert argument(container, "master-addr") == f"{name}-0.{service['metadata']['name']}"
    [rank] = [variable for variable in container["env"] if variable["name"] == "NODE_RANK"]
    assert rank["valueFrom"]["fieldRef"]["fieldPath"].endswith("['batch.kubernetes.io/job-completion-index']")
    assert argument(container, "node-rank") == "$(NODE_RANK)"


def test_errors_end_the_job_and_stops_do_not(job: dict[str, Any], pod: dict[str, Any]) -> None:
    rules = job["podFailurePolicy"]["rules"]
    codes = {rule["action"]: rule["onExitCodes"] for rule in rules if "onExitCodes" in rule}
    assert codes["FailJob"]["values"] == sorted((EXIT_USAGE, EXIT_DATA, EXIT_CACHE, EXIT_RESOURCE))
    assert codes["Ignore"]["values"] == [143]
    assert {code["operator"] for code in codes.values()} == {"In"}
    assert {code["containerName"] for code in codes.values()} == {pod["containers"][0]["name"]}
    [disrupted] = [rule for rule in rules if "onPodConditions" in rule]
    assert disrupted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert pod["restartPolicy"] == "Never"  # required by podFailurePolicy
    assert 0 < job["backoffLimit"] < 10


def test_there_is_time_to_save(pod: dict[str, Any], container: dict[str, Any]) -> None:
    [grace] = [v["value"] for v in container["env"] if v["name"] == "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]
    assert 120 <= int(grace) < pod["terminationGracePeriodSeconds"]


def test_compiled_kernels_go_to_a_volume_of_the_pod(pod: dict[str, Any], container: dict[str, Any]) -> None:
    """The image's root is read-only, so home may not be writable; a claim would be shared by ranks of all pods."""
    [folder] = [Path(v["value"]) for v in container["env"] if v["name"] == "TRITON_CACHE_DIR"]
    [name] = [mount["name"] for mount in container["volumeMounts"] if Path(mount["mountPath"]) in folder.parents]
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == name]
    assert volume["emptyDir"].get("medium") != "Memory"


def test_the_command_accepts_the_arguments(container: dict[str, Any]) -> None:
    assert container["command"] == ["python3", "-m", "penstock.bench.train.rank_launcher"]
    begin = container["args"].index("train")
    assert container["args"][begin - 2 : begin] == ["-m", "penstock.bench.cli"]
    own = [word.partition("=")[0] for word in container["args"][begin + 1 :] if word.startswith("--")]
    assert {"--resume", "--checkpoint", "--checkpoint-every"} <= set(own) <= option_names(command_train.train)
