"""Kubernetes and KServe: right by Kubernetes' own schemas, and right by what it is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from hf_triton.cli.main import make_parser
from hf_triton.tritonserver import child_process, process
from tests.unit.deploy.conftest import Deploy
from tests.unit.deploy.workspace import LOCAL, Rendered, keep_models, read_yaml, write_lock

VERSIONS = ("1.25", "1.37")  # the oldest and the newest that the package knows
EVERYTHING = (
    *("--openai", "--namespace", "models", "--replicas", "2", "--max-replicas", "5"),
    *("--storage-class", "fast", "--storage-size", "50Gi", "--gpus", "4", "--cpu", "7.5"),
    *("--memory", "64Gi", "--image", "hub/hf-triton:1"),
    *("--host", "models.example.org", "--tls-secret", "certificate"),
)
VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "everything": EVERYTHING,
    "shared claim": ("--shared-claim",),
    "local": ("--config", "local.yaml", "--local-models", "/srv/m"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_object_is_right_by_the_schema(deploy: Deploy, variant: str) -> None:
    rendered = deploy("kubernetes", *VARIANTS[variant])
    assert rendered.code == 0, rendered.err
    for entry in rendered.objects():
        for version in VERSIONS:
            kubernetes_validate.validate(entry, version, strict=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_one_object_names_another_one_is(deploy: Deploy, variant: str) -> None:
    rendered = deploy("kubernetes", *VARIANTS[variant])
    objects = rendered.objects()
    names = {(entry["kind"], entry["metadata"]["name"]) for entry in objects}
    assert len(names) == len(objects)
    for entry in objects:
        if entry["kind"] == "Deployment":
            check_deployment(entry, names, rendered)
        if entry["kind"] == "HorizontalPodAutoscaler":
            target = entry["spec"]["scaleTargetRef"]
            assert (target["kind"], target["name"]) in names
        if entry["kind"] == "Service":
            pod = rendered.pod(entry["metadata"]["name"])
            named = {port["name"] for port in pod["containers"][0]["ports"]}
            assert {port["targetPort"] for port in entry["spec"]["ports"]} == named
        if entry["kind"] == "Ingress":
            for path in entry["spec"]["rules"][0]["http"]["paths"]:
                assert ("Service", path["backend"]["service"]["name"]) in names


def check_deployment(entry: Any, names: set[tuple[str, str]], rendered: Rendered) -> None:
    template = entry["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert entry["spec"]["selector"]["matchLabels"].items() <= labels.items()
    service = rendered.object("Service", entry["metadata"]["name"])
    assert service["spec"]["selector"].items() <= labels.items()
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    for container in (*template["spec"].get("initContainers", ()), *template["spec"]["containers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
    assert ("ConfigMap", volumes["config"]["configMap"]["name"]) in names
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in volumes.values()
              if "persistentVolumeClaim" in volume]  # fmt: skip
    for claim in claims:
        assert ("PersistentVolumeClaim", claim) in names
    probed = {template["spec"]["containers"][0][probe]["httpGet"]["port"]
              for probe in ("startupProbe", "livenessProbe", "readinessProbe")}  # fmt: skip
    assert probed == {"health"}


def test_a_pod_has_time_to_drain_and_to_stop(deploy: Deploy) -> None:
    rendered = deploy("kubernetes")
    (drain_s,) = rendered.server()["lifecycle"]["preStop"]["exec"]["command"][1:]
    longest_stop_s = process.STOP_TIMEOUT_S + child_process.STOP_TIMEOUT_S
    assert rendered.pod()["terminationGracePeriodSeconds"] > int(drain_s) + longest_stop_s


def test_commands_are_ones_that_the_command_line_takes(deploy: Deploy, work: Path) -> None:
    write_lock(work)
    pod = deploy("kubernetes", "--openai", "--shared-claim").pod()
    for container in (*pod["initContainers"], *pod["containers"]):
        program, *arguments = container["args"]
        assert program == "hf-triton"
        assert make_parser().parse_args(arguments).given_config == "/etc/hf-triton/models.yaml"


@pytest.mark.parametrize("name, gpus", [("Chat_7B", 2), ("embedding", 0), ("picture", 1)])
def test_a_gpu_is_asked_for_only_where_a_model_uses_one(
    deploy: Deploy, work: Path, name: str, gpus: int
) -> None:
    keep_models(work, name)
    limits = deploy("kubernetes").server()["resources"]["limits"]
    assert limits.get("nvidia.com/gpu", 0) == gpus


def test_the_server_has_the_models_and_the_files_that_it_serves(deploy: Deploy) -> None:
    files = deploy("kubernetes").object("ConfigMap")["data"]
    assert set(files) == {"models.yaml", "embedding.py"}
    served = read_yaml(files["models.yaml"])
    assert [model["name"] for model in served["models"]] == ["Chat_7B", "embedding", "picture"]
    assert served["models"][1]["hooks"] == "embedding.py"
    assert served["defaults"] == {"dtype": "bfloat16"}


def test_a_lock_is_followed_and_sizes_are_taken_from_it(deploy: Deploy, work: Path) -> None:
    write_lock(work)
    keep_models(work, "picture")
    rendered = deploy("kubernetes")
    assert rendered.err == ""
    pod = rendered.pod()
    assert pod["initContainers"][0]["args"][-1] == "--locked"
    (models,) = [volume for volume in pod["volumes"] if volume["name"] == "models"]
    claim = models["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert claim["resources"]["requests"]["storage"] == "4Gi"
    assert pod["containers"][0]["resources"]["limits"]["memory"] == "6Gi"
    lock = rendered.object("ConfigMap")["data"]["models.lock"]
    assert lock == (work / "models.lock").read_text()


def test_each_copy_of_an_ensembles_model_has_memory(deploy: Deploy, work: Path) -> None:
    write_lock(work)
    (work / "models.yaml").write_text(
        "models: [{name: embedding, task: feature-extraction, model: org/embedding,\n"
        "  layout: ensemble, instance_group: [{kind: KIND_CPU, count: 3}]}]\n"
    )
    # 2 for the server, 1 for each of five processes, 3 for as many copies of 1 GiB, and /dev/shm.
    memory = deploy("kubernetes").server()["resources"]["limits"]["memory"]
    assert memory == "11Gi"


def test_a_shared_claim_holds_all_weights_and_every_pod_mounts_it(
    deploy: Deploy, work: Path
) -> None:
    write_lock(work)
    rendered = deploy("kubernetes", "--shared-claim", "--namespace", "models")
    assert rendered.yaml("kustomization.yaml")["namespace"] == "models"
    claim = rendered.object("PersistentVolumeClaim", "hf-triton-weights")["spec"]
    assert claim["accessModes"] == ["ReadWriteMany"]
    assert claim["resources"]["requests"]["storage"] == "27Gi"  # half as much again
    pod = rendered.pod()
    assert {"claimName": "hf-triton-weights"} in [
        volume.get("persistentVolumeClaim") for volume in pod["volumes"]
    ]
    for container in (pod["initContainers"][-1], *pod["containers"]):
        assert "weights" in {mount["name"] for mount in container["volumeMounts"]}


@pytest.mark.parametrize("name, is_limited", [("embedding", True), ("picture", False)])
def test_without_gpus_computations_have_as_many_threads_as_cores(
    deploy: Deploy, work: Path, name: str, is_limited: bool
) -> None:
    keep_models(work, name)
    variable = {"name": "OMP_NUM_THREADS", "value": "2"}
    assert (variable in deploy("kubernetes", "--cpu", "2.5").server()["env"]) is is_limited


def test_without_a_lock_the_user_is_told(deploy: Deploy) -> None:
    told = "without a models.lock hf-triton takes what the Hub has when it starts"
    assert told in deploy("kubernetes").err


@pytest.mark.parametrize(
    "names, metrics",
    [
        (("Chat_7B",), ["hf_triton_waiting"]),
        (("embedding",), ["hf_triton_open_requests"]),
        (("embedding", "picture"), ["hf_triton_waiting", "hf_triton_open_requests"]),
    ],
)
def test_the_autoscaler_reads_what_the_models_publish(
    deploy: Deploy, work: Path, names: tuple[str, ...], metrics: list[str]
) -> None:
    keep_models(work, *names)
    scaling = deploy("kubernetes").object("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert [metric["pods"]["metric"]["name"] for metric in scaling] == metrics


def test_what_scales_says_nothing_of_replicas(deploy: Deploy) -> None:
    assert "replicas" not in deploy("kubernetes").object("Deployment")["spec"]
    fixed = deploy("kubernetes", "--replicas", "3", "--max-replicas", "3")
    assert fixed.object("Deployment")["spec"]["replicas"] == 3
    assert "autoscaler.yaml" not in fixed.files


def test_pods_are_replaced_when_what_they_serve_changes(deploy: Deploy, work: Path) -> None:
    def annotations() -> dict[str, str]:
        template = deploy("kubernetes").object("Deployment")["spec"]["template"]
        found: dict[str, str] = template["metadata"]["annotations"]
        return found

    before = annotations()
    assert annotations() == before
    (work / "hooks/mine.py").write_text("def postprocess(response):\n    return response\n")
    assert annotations() != before


CANARY = """\
defaults: {instance_group: [{kind: KIND_GPU, gpus: [5]}]}
models:
  - name: a
    task: text-generation
    model: org/a
    canary:
      arms:
        - {name: stable, weight: 85}
        - {name: new, weight: 10, model: ./weights/demo, hooks: hooks/mine.py,
           instance_group: [{gpus: [7]}]}
        - {name: other, weight: 5, to: b}
  - {name: b, task: text-generation, model: org/b}
"""


def test_a_pod_has_the_arms_files_and_numbers_its_gpus_from_0(deploy: Deploy, work: Path) -> None:
    (work / "models.yaml").write_text(CANARY)
    rendered = deploy("kubernetes", "--local-models", "/srv/m", "--host", "x.y")
    assert rendered.code == 0, rendered.err
    served = read_yaml(rendered.object("ConfigMap")["data"]["models.yaml"])
    arm = served["models"][0]["canary"]["arms"][1]
    assert (arm["model"], arm["hooks"]) == ("/srv/m/weights/demo", "a_new.py")
    assert served["defaults"]["instance_group"][0]["gpus"] == [0]
    assert arm["instance_group"][0]["gpus"] == [1]
    assert rendered.server()["resources"]["limits"]["nvidia.com/gpu"] == 2
    rules = rendered.object("Ingress")["spec"]["rules"][0]["http"]["paths"]
    assert [rule["path"] for rule in rules] == [
        f"/v2/models/{name}{part}" for name in "ab" for part in ("", "_stream")
    ]


def test_local_models_are_found_where_the_flag_says(deploy: Deploy, work: Path) -> None:
    (work / "adapters").mkdir()
    (work / "local.yaml").write_text(f"{LOCAL}    adapters_from: [org/*, ./adapters]\n")
    rendered = deploy("kubernetes", *VARIANTS["local"])
    served = read_yaml(rendered.object("ConfigMap")["data"]["models.yaml"])
    assert served["models"][0]["model"] == "/srv/m/weights/demo"
    assert served["models"][0]["adapters_from"] == ["org/*", "/srv/m/adapters"]
    assert "initContainers" not in rendered.pod()


def test_hooks_that_are_not_utf8_are_refused(deploy: Deploy, work: Path) -> None:
    hooks = "# coding: latin-1\n# \xe4\ndef preprocess(request): return request\n"
    (work / "hooks/mine.py").write_bytes(hooks.encode("latin-1"))
    refused = deploy("kubernetes")
    assert refused.code == 2
    assert "a file that begins with b'# coding: latin-1" in refused.err


@pytest.mark.parametrize("locked", [False, True])
def test_pods_wait_for_each_other_at_a_shared_claim(
    deploy: Deploy, work: Path, locked: bool
) -> None:
    if locked:
        write_lock(work)
    pod = deploy("kubernetes", "--shared-claim").pod("hf-triton")
    fetch = pod["initContainers"][-1]["args"]
    assert make_parser().parse_args(" ".join(fetch).rpartition("hf-triton ")[2].split()).wait


SPREAD = """\
models:
  - name: large
    task: text-generation
    model: org/large
    options:
      engine: vllm
      vllm: {tensor_parallel_size: 8, pipeline_parallel_size: 2}
"""


def test_the_gpus_of_a_server_follow_from_its_model(deploy: Deploy, work: Path) -> None:
    (work / "spread.yaml").write_text(SPREAD)
    rendered = deploy("kubernetes", "--config", "spread.yaml")
    assert rendered.server()["resources"]["limits"]["nvidia.com/gpu"] == 16


# KServe's schema is not on PyPI: the pod in it is Kubernetes', and these are the v1beta1 API's own.
# https://github.com/kserve/kserve, pkg/apis/serving/v1beta1/component.go: ComponentExtensionSpec.
COMPONENT: dict[str, type] = {
    "minReplicas": int,
    "maxReplicas": int,
    "labels": dict,
    "annotations": dict,
    "deploymentStrategy": dict,
}
OF_KSERVE = {
    "plain": (),
    "longest name": ("--openai", "--name", "a" * 32),
    "shared claim": ("--shared-claim", "--namespace", "models"),
}


@pytest.mark.parametrize("variant", OF_KSERVE)
def test_every_object_of_kserve_is_right_by_the_schema(deploy: Deploy, variant: str) -> None:
    rendered = deploy("kserve", *OF_KSERVE[variant])
    assert rendered.code == 0, rendered.err
    services = []
    for entry in rendered.objects():
        if entry["kind"] == "InferenceService":
            check_inference_service(entry)
            assert len(f"{entry['metadata']['name']}-predictor") <= 63  # of what KServe makes of it
            services.append(entry)
        else:
            kubernetes_validate.validate(entry, "1.31", strict=True)
    assert len(services) == 1


def check_inference_service(entry: dict[str, Any]) -> None:
    assert entry["apiVersion"] == "serving.kserve.io/v1beta1"
    assert set(entry) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(entry["spec"]) == {"predictor"}
    predictor = dict(entry["spec"]["predictor"])
    for name, kind in COMPONENT.items():
        assert isinstance(predictor.pop(name), kind)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": predictor}
    kubernetes_validate.validate(pod, "1.31", strict=True)
