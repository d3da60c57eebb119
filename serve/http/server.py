"""Run the service until a signal ends it."""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from memmodel.serve.http.app import make_app
from memmodel.serve.http.batcher import Batcher
from memmodel.serve.http.grpc import start_grpc
from memmodel.serve.http.imports import ModelRepository
from memmodel.serve.http.limits import Limits
from memmodel.serve.http.listener import listen
from memmodel.serve.http.model import CheckedDataPlane, ServedModel
from memmodel.serve.runner import Runner

# Seconds that answers to requests which were given up have to leave.
_FAREWELL = 2


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handling, which would kill the process once drained."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve_http(
    runner: Runner,
    name: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    grpc_port: int | None = None,
    limits: Limits | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> bool:
    """Serve a model over HTTP and, if asked for, gRPC, until SIGTERM or SIGINT.

    Requests in flight are finished before it returns; later ones are refused, and so are, after
    ``limits.grace`` seconds, those that are not finished.

    Args:
        runner: the model.
        name: its name in URLs.
        host: address to listen on; only this machine can reach the default.
        port: port for HTTP.
        grpc_port: port for gRPC; None: no gRPC.
        limits: bounds on requests.
        on_ready: called once requests are accepted.

    Returns:
        False if the model is still at work on a request that was given up. The interpreter would
        wait for that before it exits.

    Raises:
        OSError: an address cannot be bound.
    """
    return asyncio.run(_serve(runner, name, host, port, grpc_port, limits or Limits(), on_ready))


async def _serve(
    runner: Runner,
    name: str,
    host: str,
    port: int,
    grpc_port: int | None,
    limits: Limits,
    on_ready: Callable[[], None],
) -> bool:
    # kserve logs a traceback for each request that is refused; clients get the reason.
    logging.getLogger("kserve").setLevel(logging.CRITICAL)
    batcher = Batcher(runner, limits)
    models = ModelRepository()
    models.update(ServedModel(name, runner, batcher, limits))
    data_plane = CheckedDataPlane(models)
    listener = listen(host, port)
    http = _Server(
        uvicorn.Config(
            make_app(data_plane, limits.request_bytes),
            log_level="warning",
            timeout_graceful_shutdown=limits.grace + _FAREWELL,
        )
    )

    loop = asyncio.get_running_loop()

    def shut_down() -> None:
        batcher.refuse()
        http.should_exit = True
        loop.call_later(limits.grace, batcher.abandon)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, shut_down)
    grpc = None
    if grpc_port is not None:
        grpc = await start_grpc(data_plane, f"{host}:{grpc_port}", limits.request_bytes)
    ready = asyncio.create_task(_announce(http, on_ready))
    try:
        await http.serve([listener])  # returns when the requests in flight are done
    finally:
        ready.cancel()
        drained = await batcher.drain()
        if grpc is not None:
            await grpc.stop(_FAREWELL)
    return drained


async def _announce(server: uvicorn.Server, on_ready: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    on_ready()
