"""Runs one command and writes what it took: ``python -IS child.py DESCRIPTOR COMMAND...``

A process of its own because a process's peak memory begins at that of the one it was forked from:
this one is small. Written to the file descriptor as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time


def main(descriptor: int, command: list[str]) -> None:
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while True:
        try:
            _, status, used = os.wait4(process.pid, 0)
            break
        except KeyboardInterrupt:  # the terminal has told the command too
            continue
    taken = {
        "wall_s": time.perf_counter() - begin,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_memory_mib": used.ru_maxrss / 1024,
        "exit_code": os.waitstatus_to_exitcode(status),
    }
    os.write(descriptor, json.dumps(taken).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
