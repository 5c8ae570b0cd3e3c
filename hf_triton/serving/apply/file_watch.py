"""``serve --watch``: runs an apply whenever models.yaml, or a file that it names, is saved.

Compares contents, twice a second, because editors rewrite, rename, or touch files without a change.
A mistake in a file is reported once and changes nothing; the next save is tried again.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from generator.errors import EXIT_OK, GeneratorError, ServerError, SpecError, error_text
from generator.models_yaml.models_lock import lock_path
from generator.models_yaml.reading import load, load_settings
from generator.models_yaml.server_settings import ServerSettings
from generator.repository import served_record
from generator.yaml_file.nodes import MOST_BYTES
from hf_triton.runtime.regular_file import read_regular
from hf_triton.serving.apply.session import ApplyOptions, Session
from hf_triton.serving.apply.target import Target

_LOOK_EVERY_S = 0.5
_TRY_AGAIN_AFTER_S = 5.0
_END_WITHIN_S = 5.0
Say = Callable[[str], None]


class WatchedFiles:
    """models.yaml, the lock beside it, and the hooks and requirements that it names."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self._named: list[Path] = []
        self.find_named()
        self.first = self.digest()

    def find_named(self) -> None:
        """Updates which files models.yaml names; keeps the old ones if it has mistakes."""
        with contextlib.suppress(GeneratorError):
            specs = load(self.config)
            hooks = {spec.hooks.path for spec in specs if spec.hooks is not None}
            required = {file for spec in specs if spec.python_env for file in spec.python_env.files}
            self._named = sorted(hooks | required)

    def digest(self) -> str:
        found = hashlib.sha256()
        for path in (self.config, lock_path(self.config), *self._named):
            found.update(hashlib.sha256(_content(path)).digest())
        return found.hexdigest()

    def saved_at_ns(self) -> int | None:
        with contextlib.suppress(OSError):
            return self.config.stat().st_mtime_ns
        return None


def _content(path: Path) -> bytes:
    """A file's content; the time and size of a large one, such as a wheel."""
    try:
        return read_regular(path, MOST_BYTES)
    except OSError as error:
        with contextlib.suppress(OSError):
            found = path.stat()
            return f"{error.strerror} {found.st_mtime_ns} {found.st_size}".encode()
        return b"missing"


class Watch:
    """A thread that watches files and applies them to one server, while ``is_serving()``."""

    def __init__(
        self,
        files: WatchedFiles,
        repository: Path,
        target: Target,
        is_serving: Callable[[], bool],
        say: Say,
    ) -> None:
        """The first apply is for what has changed since ``files.first``."""
        self._files, self._repository, self._target = files, repository, target
        self._is_serving, self._say = is_serving, say
        self._applied = files.first
        self._settings = _settings(files.config)
        self._failed_save_ns: int | None = None
        self._try_at_s = 0.0
        self._ended = threading.Event()
        self._session: Session | None = None
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the models under way, unless that takes too long."""
        self._ended.set()
        if self._session is not None:
            self._session.stop()
        if self._thread.is_alive():
            self._thread.join(_END_WITHIN_S)

    def _run(self) -> None:
        seen = self._applied
        while not self._ended.wait(_LOOK_EVERY_S):
            before, seen = seen, self._files.digest()
            # Twice the same digest: nobody is still writing.
            is_new = seen == before and (seen != self._applied or self._is_saved_again())
            if is_new and self._is_serving() and time.monotonic() >= self._try_at_s:
                self._apply(seen)

    def _is_saved_again(self) -> bool:
        """Whether a failed models.yaml was saved unchanged: the cause may have been elsewhere."""
        failed = self._failed_save_ns
        return failed is not None and self._files.saved_at_ns() not in (None, failed)

    def _apply(self, digest: str) -> None:
        config = self._files.config
        self._applied = digest
        saved_at_ns, self._failed_save_ns = self._files.saved_at_ns(), None
        if not config.exists():
            self._say(f"{config} is gone: nothing is changed until it is back")
            return
        self._say(f"{config} was saved: applying it")
        self._session = Session(
            self._repository, self._target, ApplyOptions(wait=True), self._say, self._say
        )
        try:
            if self._session.apply(config) != EXIT_OK:
                self._failed_save_ns = saved_at_ns
                self._say("not all of it is served: correct it and save it again")
        except GeneratorError as error:
            self._failed_save_ns = saved_at_ns
            self._say(f"{error_text(error)}\nhf-triton: nothing was changed; still watching")
            if isinstance(error, ServerError):  # the server may be restarting: try again later
                self._applied, self._try_at_s = "", time.monotonic() + _TRY_AGAIN_AFTER_S
            with contextlib.suppress(GeneratorError):  # such as a repository that can only be read
                served_record.note_failed_apply(self._repository)
        except Exception:  # noqa: BLE001, a bug of ours must not end what is served
            self._say(f"{traceback.format_exc()}hf-triton: this is a bug in hf-triton")
        self._session = None
        self._files.find_named()
        settings = _settings(config)
        if settings not in (None, self._settings):
            self._settings = settings
            self._say(f"{config}: the server: block has changed; restart serve to apply that")


def _settings(config: Path) -> ServerSettings | None:
    with contextlib.suppress(SpecError):
        return load_settings(config)
    return None
