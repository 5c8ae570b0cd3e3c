"""The ``tritonserver`` command of the cpu image: the embedded server, given the same arguments.

It becomes the server, so that signals reach that as in NVIDIA's container.
"""

from __future__ import annotations

import os
import sys

from generator.errors import ServerError
from generator.server_binary import embedded


def main() -> None:
    """Replace this process by the server; exit with 1 and one line where none can run."""
    try:
        binary = embedded()
    except ServerError as error:
        sys.exit(f"tritonserver: {error}")
    command = [*binary.command, *sys.argv[1:]]
    os.execve(command[0], command, binary.full_environment())  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
