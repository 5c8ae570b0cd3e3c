"""A draft model is fetched into its model's cache and locked as the model itself is."""

from __future__ import annotations

import pytest

from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights.model_files import draft_model, model_files
from tests.fetch.workplace import Workplace
from tests.support.fake_hub import COMMIT, FakeHub, Repository

SAVED = {"config.json": b"{}", "model.safetensors": b"small" * 100}


def test_a_draft_models_files_come_into_the_models_cache(work: Workplace, hub: FakeHub) -> None:
    hub.repositories["org/small"] = Repository(SAVED)
    model = {"name": "tiny", "task": "text-generation", "model": "org/tiny", "streaming": False}
    work.write_models([{**model, "draft_model": {"model": "org/small"}}])
    ran = work.fetch()
    assert f"tiny, draft model: org/small ({COMMIT[:12]}), 2 files" in ran.out
    assert set(work.lock["models"]) == {"org/tiny", "org/small"}
    hub.fails = True
    served = work.served()
    assert served.draft_model is not None
    assert served.draft_model.revision == COMMIT
    found = model_files(draft_model(served, served.draft_model))
    assert work.cache() in found.parents
    assert sorted(path.name for path in found.iterdir()) == sorted(SAVED)
    hub.fails = False
    del hub.repositories["org/small"]  # huggingface_hub asks once where there is none
    (found / "model.safetensors").unlink()
    with pytest.raises(LoadError, match=r"model\.safetensors"):
        model_files(draft_model(served, served.draft_model))
