"""The REST side: kserve's routes in an application of our own."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from memmodel.serve.http.imports import (
    DataPlane,
    InvalidInput,
    ModelNotFound,
    ModelNotReady,
    register_v2_endpoints,
)
from memmodel.serve.http.limits import DrainingError, QueueFullError

_STATUS: dict[type[Exception], int] = {
    InvalidInput: 400,
    ModelNotFound: 404,
    QueueFullError: 429,
    NotImplementedError: 501,
    DrainingError: 503,
    ModelNotReady: 503,
    Exception: 500,
}
_PATIENCE = 16 << 20
_Message = MutableMapping[str, Any]


def make_app(data_plane: DataPlane, request_bytes: int) -> FastAPI:
    """The application with the protocol's routes, ``/metrics`` and proper status codes."""
    app = FastAPI(title="memmodel", docs_url=None, redoc_url=None)
    register_v2_endpoints(app, data_plane, None)
    app.add_api_route("/metrics", _metrics, methods=["GET"])
    for kind, status in _STATUS.items():
        app.add_exception_handler(kind, _handler(status))
    app.add_middleware(BodyLimit, request_bytes=request_bytes)
    return app


class BodyLimit:
    """Answers 413 to a body over the limit, before it is read into memory as a whole.

    Also keeps kserve's routes that load and unload models from clients.

    Args:
        app: the application behind it.
        request_bytes: the limit.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], request_bytes: int) -> None:
        self._app, self._limit = app, request_bytes

    async def __call__(self, scope: _Message, receive: Any, send: Any) -> None:
        """Pass a request on, counting its bytes."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"].startswith("/v2/repository/"):
            await _error(404, "there is no such route")(scope, receive, send)
            return
        body = await self._read(receive)
        if body is None:
            reason = f"the body is larger than {self._limit} bytes"
            await _error(413, reason)(scope, receive, send)
            return
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> _Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, replay, send)

    async def _read(self, receive: Any) -> bytes | None:
        """The body, or None if it is too large.

        A client that is still sending may not listen for the answer, so a body that is too large is
        read on for a while, but not kept.
        """
        body, size, more = bytearray(), 0, True
        while more and size <= self._limit + _PATIENCE:
            message = await receive()
            content = message.get("body", b"")  # nothing comes once the client has gone
            more = message.get("more_body", False)
            size += len(content)
            if size <= self._limit:
                body += content
        return bytes(body) if size <= self._limit else None


def _handler(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handle(request: Request, error: Exception) -> Response:
        return _error(status, str(error) or type(error).__name__)

    return handle


def _error(status: int, reason: str) -> JSONResponse:
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    if status == 503:  # the connection is about to be closed: nobody should send more on it
        headers["Connection"] = "close"
    return JSONResponse({"error": reason}, status, headers)


async def _metrics() -> Response:
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
