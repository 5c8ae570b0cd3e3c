"""What every task of encoder models shares: tokenisation, the engine, its runners, Triton's side.

A task's model.py imports it by this name; the generator copies it beside that model.py.
"""

import hf_runtime  # noqa: F401, before torch: it says how torch's threads wait
