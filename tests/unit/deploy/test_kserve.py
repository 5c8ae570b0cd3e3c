"""The KServe target. Its own schema is not on PyPI: the pod in it is Kubernetes' and is held
against that; of what KServe adds, the fields are listed here as the v1beta1 API has them.
"""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from tests.unit.deploy.conftest import Deploy

# https://github.com/kserve/kserve, pkg/apis/serving/v1beta1/component.go: ComponentExtensionSpec.
COMPONENT: dict[str, type] = {
    "minReplicas": int,
    "maxReplicas": int,
    "labels": dict,
    "annotations": dict,
    "deploymentStrategy": dict,
}
VARIANTS = {
    "plain": (),
    "longest name": ("--openai", "--name", "a" * 32),
    "shared claim": ("--shared-claim", "--namespace", "models"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_object_is_right_by_the_schema(deploy: Deploy, variant: str) -> None:
    rendered = deploy("kserve", *VARIANTS[variant])
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
