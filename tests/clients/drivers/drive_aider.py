"""aider as people start it: a message on the command line, in a folder that it makes a git
repository of. What the model writes is in the message (tests/clients/agent).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tried import program, tried

WORK = Path(os.environ["OUTPUT"])
LINES = "".join(f"line {n}\n" for n in range(100))  # longer than an answer is by default


def aider(answer: str, *options: str) -> str:
    task = f"Do it. <script>{json.dumps([answer])}</script>"
    start = ("aider", "--model", "openai/agent", "--yes-always", "--message", task)
    return program(*start, *options, OPENAI_API_BASE=os.environ["OPENAI_BASE_URL"])


def git(*arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=WORK, text=True)


with tried("a file written whole"):
    said = aider(f"It is written.\n\na.txt\n```\n{LINES}```")
    assert (WORK / "a.txt").read_text() == LINES, said
    assert "a.txt" in git("show", "--stat"), said
with tried("--edit-format diff"):
    edit = "<<<<<<< SEARCH\nline 7\n=======\nline seven\n>>>>>>> REPLACE"
    said = aider(f"It is edited.\n\na.txt\n```\n{edit}\n```", "--edit-format", "diff", "a.txt")
    assert (WORK / "a.txt").read_text() == LINES.replace("line 7\n", "line seven\n"), said
with tried("--no-stream"):
    assert "It is said." in aider("It is said.", "--no-stream")
