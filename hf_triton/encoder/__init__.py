"""The code that all tasks of encoder models share: tokenisation, the engine, its runners."""

import hf_triton.runtime  # noqa: F401, before torch: it says how torch's threads wait
