"""``python -m hf_triton.tritonserver ARGUMENTS`` becomes the wheel's tritonserver, as
in a container.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from generator.errors import GeneratorError
from hf_triton.tritonserver import binary as server_binary
from hf_triton.tritonserver.guard import give_deep_stacks


def main(arguments: Sequence[str]) -> int:
    """Becomes the wheel's tritonserver with ``arguments``; returns only where that can't be."""
    try:
        binary = server_binary.embedded()
    except GeneratorError as error:
        print(f"tritonserver: {error}", file=sys.stderr)
        return error.exit_code
    give_deep_stacks()
    command = [*binary.command, *arguments]
    return os.execve(command[0], command, binary.full_environment())  # noqa: S606


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
