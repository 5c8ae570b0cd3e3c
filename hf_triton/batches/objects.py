"""Files and batches as OpenAI's API tells them, and the requests for them. Times are in seconds
since 1970.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from hf_triton.batches.lines import Endpoint, Mistake
from hf_triton.ports.openai.schema.body import Filled

WINDOW_S = 24 * 3600
KEEP_S = 30 * WINDOW_S  # of batches, and of files with no time of their own


class ExpiresAfter(Struct):
    """Seconds from its creation on, after which a file is deleted."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Meta(ge=3600, le=KEEP_S)] = KEEP_S


class Upload(Struct):
    """The form of an upload, but for the file itself."""

    purpose: Literal["batch"]
    expires_after: ExpiresAfter = field(default_factory=ExpiresAfter)


class BatchRequest(Struct):
    input_file_id: Filled
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


class File(Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"


class Deleted(Struct):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class Counts(Struct):
    total: int = 0
    completed: int = 0
    failed: int = 0


class Mistakes(Struct):
    data: list[Mistake]
    object: Literal["list"] = "list"


class Batch(Struct, kw_only=True):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: Endpoint
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: str = "validating"
    errors: Mistakes | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts = field(default_factory=Counts)
    metadata: Any = None
    output_expires_after: ExpiresAfter | None = None

    def enter(self, status: str, now_s: int) -> None:
        self.status = status
        setattr(self, f"{status}_at", now_s)

    @property
    def is_open(self) -> bool:
        return self.status in ("validating", "in_progress", "cancelling")

    @property
    def outputs(self) -> tuple[str, str]:
        """The ids of the files of answers and of errors, which appear when it ends."""
        return (f"file-{self.id}-output", f"file-{self.id}-errors")


class Page(Struct):
    data: list[Any]  # files or batches
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"
