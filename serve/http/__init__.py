"""An HTTP and gRPC service that speaks the Open Inference Protocol, version 2."""

from memmodel.serve.http.limits import Limits

__all__ = ["Limits", "serve_http"]


def serve_http(*arguments, **options):  # type: ignore[no-untyped-def]
    """See :func:`memmodel.serve.http.server.serve_http`; needs the extra ``http``."""
    try:
        import kserve  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the HTTP service needs kserve: pip install 'memmodel[http]'", name=error.name
        ) from error
    from memmodel.serve.http import server

    return server.serve_http(*arguments, **options)
