"""``hf-triton deploy`` as a user meets it: what it writes, keeps, refuses, and says."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_triton.cli import main as cli
from tests.unit.deploy.conftest import Deploy

TARGETS = ("compose", "kubernetes", "kserve")


@pytest.mark.parametrize("target", TARGETS)
def test_a_second_run_writes_nothing(deploy: Deploy, work: Path, target: str) -> None:
    first = deploy(target)
    number = len(first.files)
    assert f"out: {number} written, 0 identical\n" in first.out
    before = {path: path.stat().st_mtime_ns for path in (work / "out").rglob("*")}
    second = deploy(target)
    assert f"out: 0 written, {number} identical\n" in second.out
    assert {path: path.stat().st_mtime_ns for path in (work / "out").rglob("*")} == before
    assert second.files == first.files


@pytest.mark.parametrize("target", TARGETS)
def test_no_path_of_this_machine_stands_in_a_file(deploy: Deploy, work: Path, target: str) -> None:
    files = deploy(target).files
    assert str(work) not in "".join(files.values())


def test_diff_writes_nothing_and_tells_what_is_stale(deploy: Deploy, work: Path) -> None:
    shown = deploy("kubernetes", "--diff")
    assert (shown.code, shown.files) == (1, {})
    assert "create out/deployment.yaml" in shown.out
    number = len(deploy("kubernetes").files)
    same = deploy("kubernetes", "--diff")
    assert (same.code, same.out) == (0, f"out: {number} identical\n")
    changed = deploy("kubernetes", "--diff", "--cpu", "9")
    assert changed.code == 1
    assert '+              cpu: "9"' in changed.out
    assert not deploy("kubernetes", "--diff").code


def test_a_file_edited_by_hand_is_kept(deploy: Deploy, work: Path) -> None:
    deploy("kubernetes")
    edited = work / "out/service.yaml"
    edited.write_text("mine\n")
    refused = deploy("kubernetes", "--cpu", "9")
    assert refused.code == 1
    assert refused.err == (
        "hf-triton: conflict: out/service.yaml: edited by hand\n"
        "nothing was written: move your edits away, or use --force\n"
    )
    assert edited.read_text() == "mine\n"
    assert '"9"' not in refused.files["deployment.yaml"]
    assert deploy("kubernetes", "--cpu", "9", "--force").code == 0
    assert edited.read_text() != "mine\n"


def test_a_folder_of_somebody_elses_is_not_taken(deploy: Deploy, work: Path) -> None:
    (work / "out").mkdir()
    (work / "out/notes.txt").write_text("mine")
    refused = deploy("kubernetes")
    assert refused.code == 1
    assert "exists, holds notes.txt, and was not made by hf-triton" in refused.err
    assert set(refused.files) == {"notes.txt"}


def test_what_is_no_longer_needed_goes(deploy: Deploy) -> None:
    assert "ingress.yaml" in deploy("kubernetes", "--host", "models.example.org").files
    assert "ingress.yaml" not in deploy("kubernetes").files


def test_the_commands_that_follow_are_printed(deploy: Deploy) -> None:
    out = deploy("kubernetes", "--namespace", "models").out
    assert out.splitlines()[1:] == [
        (
            "docker build --target gpu -t hf-triton:gpu .   # push it where the cluster pulls "
            "from, and name it with --image"
        ),
        "kubectl create namespace models",
        (
            'kubectl -n models create secret generic hf-token --from-literal=token="$HF_TOKEN"'
            "   # for gated models"
        ),
        (
            "kubectl -n models create secret generic hf-triton-keys "
            '--from-literal=admin="$(openssl rand -hex 32)"'
        ),
        "kubectl apply --server-side -k out",
    ]


def test_an_image_is_built_for_the_device_that_its_name_says(deploy: Deploy, work: Path) -> None:
    entry = "{name: m, task: fill-mask, model: org/m, instance_group: [{kind: KIND_CPU}]}"
    (work / "models.yaml").write_text(f"models: [{entry}]\n")
    for target in TARGETS:
        out = deploy(target, "--device", "gpu", "--force").out
        assert "docker build --target gpu -t hf-triton:gpu ." in out


ADVICE = (
    "is a folder on this machine, which a cluster does not have: use a model on the Hub, or put it "
    "into the image or a volume, and say with --local-models where relative paths start there"
)
REFUSALS = {
    "local models": (
        ("kubernetes", "--config", "local.yaml"),
        f"1 mistake in local.yaml\nlocal.yaml:4:12: models[0].model: './weights/demo' {ADVICE}",
        1,
    ),
    "missing file": (
        ("kubernetes", "--config", "nowhere.yaml"),
        "1 mistake in nowhere.yaml\nnowhere.yaml: no such file",
        1,
    ),
    "certificate alone": (("kubernetes", "--tls-secret", "c"), "--tls-secret needs --host", 2),
    "fewer than replicas": (
        ("kubernetes", "--replicas", "3", "--max-replicas", "2"),
        "got --max-replicas 2 with --replicas 3, expected at least as many",
        2,
    ),
    "no gpu": (
        ("kubernetes", "--device", "cpu"),
        (
            "--device cpu, but instance groups of 'Chat_7B' are KIND_GPU: leave it out, or change "
            "them"
        ),
        2,
    ),
    "too few gpus": (
        ("kubernetes", "--gpus", "1"),
        (
            "got --gpus 1, but 'Chat_7B', 'embedding', 'picture' use 2 GPUs by their instance "
            "groups and options.vllm"
        ),
        2,
    ),
    "an ingress that KServe makes": (
        ("kserve", "--host", "models.example.org"),
        "--host: KServe makes an InferenceService's Ingress itself; leave it out",
        2,
    ),
    "gpus on cpu": (
        ("compose", "--device", "cpu", "--gpus", "1"),
        "--device cpu with --gpus 1: leave one of them out",
        2,
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_can_not_work_is_refused(deploy: Deploy, case: str) -> None:
    arguments, text, code = REFUSALS[case]
    refused = deploy(*arguments)
    assert (refused.err, refused.code) == (f"hf-triton: {text}\n", code)
    assert refused.files == {}


def test_the_repository_is_no_place_for_it(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["deploy", "--repository", "out", "compose", "--output", "out"]
    assert cli.main(flags) == 2
    assert capsys.readouterr().err == (
        "hf-triton: --output out is the model repository; expected a folder of its own\n"
    )


WRONG_VALUES = {
    ("--name", "Mine"): "lower-case letters, digits and -, at most 32, a letter first",
    ("--name", "a" * 33): "lower-case letters, digits and -, at most 32, a letter first",
    ("--memory", "8GB"): "a whole number of Mi, Gi or Ti, such as 16Gi",
    ("--storage-size", "0Gi"): "a whole number of Mi, Gi or Ti, such as 16Gi",
    ("--cpu", "0"): "cores, such as 4 or 0.5",
    ("--gpus", "0"): "a whole number from 1 to 64",
    ("--storage-class", "a_b"): "a name of lower-case letters, digits, - and .",
    ("--local-models", "weights"): "an absolute path",
    ("--replicas", "0"): "a whole number from 1 to 10000",
    ("--host", 'x"\nkind: Pod'): "a name of lower-case letters, digits, - and .",
}


@pytest.mark.parametrize("flag, value", WRONG_VALUES)
def test_a_wrong_value_is_told_with_what_is_expected(deploy: Deploy, flag: str, value: str) -> None:
    refused = deploy("kubernetes", f"{flag}={value}")
    assert refused.code == 2
    expected = WRONG_VALUES[flag, value]
    assert f"argument {flag}: got {value[:80]!r}, expected {expected}\n" in refused.err


@pytest.mark.parametrize(
    "flags, told",
    [
        (("--network-policy",), "--network-policy is gone: set it by a kustomization of your own"),
        (("--node-selector", "pool=gpu"), "--node-selector is gone: set it by a kustomization"),
        (("--grafana-image=a:1",), "--grafana-image is gone: set it in a compose.override.yaml"),
        (("--per-model",), "--per-model is gone: give each model a models.yaml, as by --config"),
    ],
)
def test_flags_that_are_gone_say_what_to_use(
    deploy: Deploy, flags: tuple[str, ...], told: str
) -> None:
    refused = deploy("kubernetes", *flags)
    assert refused.code == 2
    assert told in refused.err
