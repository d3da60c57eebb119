"""kserve, imported without its command line.

``import kserve`` parses ``sys.argv``, and would take options of ours for its own.
"""

import sys

_argv = sys.argv
sys.argv = sys.argv[:1]
try:
    from kserve import InferOutput, InferRequest, InferResponse, Model, ModelRepository
    from kserve.errors import InvalidInput, ModelNotFound, ModelNotReady
    from kserve.protocol.dataplane import DataPlane
    from kserve.protocol.grpc import grpc_predict_v2_pb2_grpc
    from kserve.protocol.grpc.interceptors import ExceptionToStatusInterceptor
    from kserve.protocol.grpc.servicer import InferenceServicer
    from kserve.protocol.rest.v2_endpoints import register_v2_endpoints
finally:
    sys.argv = _argv

__all__ = [
    "DataPlane",
    "ExceptionToStatusInterceptor",
    "InferOutput",
    "InferRequest",
    "InferResponse",
    "InferenceServicer",
    "InvalidInput",
    "Model",
    "ModelNotFound",
    "ModelNotReady",
    "ModelRepository",
    "grpc_predict_v2_pb2_grpc",
    "register_v2_endpoints",
]
