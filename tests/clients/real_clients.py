"""Which clients are installed and driven: packages and versions, driver, what does not work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

DRIVERS = Path(__file__).parent / "drivers"


@dataclass(frozen=True)
class Client:
    """The first of ``requirements`` is the client, of PyPI or, after ``npm:``, of npm; ``gaps`` are
    the names of what its driver tries in vain, each with the reason.
    """

    name: str
    driver: str
    requirements: tuple[str, ...]
    gaps: Mapping[str, str] = field(default_factory=dict)


# The build of torch that is here: PyPI's own brings gigabytes for GPUs.
_TORCH = f"torch=={version('torch')}"

CLIENTS = (
    Client("aider", "drive_aider.py", ("aider-chat==0.86.*",)),
    Client("aiperf", "drive_aiperf.py", ("aiperf==0.13.*",)),
    Client("anthropic", "drive_anthropic.py", ("anthropic==2.*",)),
    Client("anthropic (Node)", "drive_anthropic.mjs", ("npm:@anthropic-ai/sdk@1", "npm:zod")),
    Client("Claude Agent SDK", "drive_claude_agent_sdk.py", ("claude-agent-sdk==0.2.*",)),
    Client("Claude Code", "drive_claude_code.mjs", ("npm:@anthropic-ai/claude-code@2.1",)),
    Client("Codex", "drive_codex.mjs", ("npm:@openai/codex@0.171",)),
    Client("cohere", "drive_cohere.py", ("cohere==7.*",)),
    Client("crewai", "drive_crewai.py", ("crewai==1.*",)),
    Client("dspy", "drive_dspy.py", ("dspy[numpy]==3.*",)),
    Client("genai-perf", "drive_genai_perf.py", ("genai-perf==0.0.16",)),
    Client("guidellm", "drive_guidellm.py", ("guidellm==0.8.*", _TORCH)),
    Client("Haystack", "drive_haystack.py", ("haystack-ai==3.*",)),
    Client("instructor", "drive_instructor.py", ("instructor==1.*",)),
    Client(
        "KServe's SDK",
        "drive_kserve.py",
        ("kserve==0.21.*",),
        {"InferenceRESTClient.is_server_ready": "it reads JSON, Triton answers a status alone"},
    ),
    Client(
        "langchain-openai",
        "drive_langchain.py",
        ("langchain-openai==1.*",),
        {"OpenAIEmbeddings": "it sends token ids of OpenAI's own tokenizer, which it downloads"},
    ),
    # It imports mcp where there are tools, and does not require it.
    Client("LiteLLM", "drive_litellm.py", ("litellm==1.106.*", "mcp")),
    Client("llm", "drive_llm.py", ("llm==0.*",)),
    Client("lm-eval", "drive_lm_eval.py", ("lm-eval[api]==0.4.*", "transformers")),
    Client("LlamaIndex", "drive_llama_index.py", ("llama-index-llms-nvidia-triton==0.6.*",)),
    Client("mlserver infer", "drive_mlserver.py", ("mlserver==1.7.*",)),
    Client(
        "Microsoft Agent Framework",
        "drive_agent_framework.py",
        ("agent-framework-openai==1.*",),
    ),
    Client(
        "Model Analyzer",
        "drive_model_analyzer.py",
        ("triton-model-analyzer==1.58.*", "tritonclient"),
    ),
    Client("Open WebUI", "drive_open_webui.py", ("open-webui==0.12.*", _TORCH)),
    Client("openai", "drive_openai.py", ("openai==3.*",)),
    Client("openai (Node)", "drive_openai.mjs", ("npm:openai@7", "npm:zod")),
    Client("openai-agents", "drive_openai_agents.py", ("openai-agents==0.*",)),
    Client("opencode", "drive_opencode.mjs", ("npm:opencode-ai@1",)),
    Client("pydantic-ai", "drive_pydantic_ai.py", ("pydantic-ai-slim[openai]==2.*",)),
    Client("pytriton", "drive_pytriton.py", ("nvidia-pytriton==0.7.*",)),
    Client("Semantic Kernel", "drive_semantic_kernel.py", ("semantic-kernel==1.*",)),
    Client("smolagents", "drive_smolagents.py", ("smolagents[openai]==1.*",)),
    Client("Strands", "drive_strands.py", ("strands-agents[openai]==1.*",)),
    Client("tritonclient", "drive_tritonclient.py", ("tritonclient[grpc,http]==2.73.*",)),
    Client("Vercel's AI SDK", "drive_ai_sdk.mjs", ("npm:@ai-sdk/openai@4", "npm:ai@7", "npm:zod")),
)
