"""The gRPC side: kserve's service on a server of our own."""

from typing import Any

from grpc import StatusCode, aio

from memmodel.serve.http.imports import (
    DataPlane,
    ExceptionToStatusInterceptor,
    InferenceServicer,
    InvalidInput,
    grpc_predict_v2_pb2_grpc,
)
from memmodel.serve.http.limits import DrainingError, QueueFullError

_STATUS: dict[type[Exception], StatusCode] = {
    InvalidInput: StatusCode.INVALID_ARGUMENT,
    QueueFullError: StatusCode.RESOURCE_EXHAUSTED,
    DrainingError: StatusCode.UNAVAILABLE,
}


class _Statuses(ExceptionToStatusInterceptor):
    """Our errors as status codes, without a traceback in the log for a client's mistake."""

    async def handle_exception(
        self, ex: Exception, request_or_iterator: Any, context: Any, method_name: str
    ) -> None:
        if type(ex) in _STATUS:
            await context.abort(_STATUS[type(ex)], str(ex))
        await super().handle_exception(ex, request_or_iterator, context, method_name)


class _Servicer(InferenceServicer):
    """kserve's service without loading and unloading of models by clients."""

    async def RepositoryModelLoad(self, request: Any, context: Any) -> None:  # noqa: N802
        await context.abort(StatusCode.UNIMPLEMENTED, "models are not loaded by clients")

    async def RepositoryModelUnload(self, request: Any, context: Any) -> None:  # noqa: N802
        await context.abort(StatusCode.UNIMPLEMENTED, "models are not unloaded by clients")


async def start_grpc(data_plane: DataPlane, address: str, request_bytes: int) -> aio.Server:
    """Start serving at ``address``.

    Raises:
        OSError: the address cannot be bound.
    """
    options = [
        ("grpc.max_receive_message_length", request_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),  # two services on one port would share the requests
    ]
    server = aio.server(interceptors=(_Statuses(),), options=options)
    grpc_predict_v2_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
        _Servicer(data_plane, None), server
    )
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address} for gRPC: {error}") from error
    await server.start()
    return server
