"""What the service accepts, and the errors that say no."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on requests and on the work that waits.

    Attributes:
        request_bytes: largest body.
        rows: most rows in one request.
        steps: most steps of one rollout.
        result_bytes: most memory that the results of one request, or of requests that are rolled
            out together, may take.
        queue_rows: most rows that wait; more are refused.
        queue_bytes: most bytes of requests that wait, unless a single one has more.
        batch_rows: most rows that are rolled out together.
        delay: seconds that a request waits for others of its shape.
        grace: seconds that requests in flight get to finish after SIGTERM.
    """

    request_bytes: int = 64 << 20
    rows: int = 1024
    steps: int = 100_000
    result_bytes: int = 256 << 20
    queue_rows: int = 4096
    queue_bytes: int = 512 << 20
    batch_rows: int = 64
    delay: float = 0.002
    grace: int = 30

    def __post_init__(self) -> None:
        positive = ("request_bytes", "rows", "result_bytes", "queue_rows", "queue_bytes")
        for name in (*positive, "batch_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("steps", "delay", "grace"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")


class QueueFullError(Exception):
    """Too many rows or bytes wait already: HTTP 429, gRPC RESOURCE_EXHAUSTED."""


class DrainingError(Exception):
    """The service is shutting down: HTTP 503, gRPC UNAVAILABLE."""
