"""A real server process for tests."""

import socket
import subprocess
import sys
import time
from contextlib import contextmanager


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def service(model, *options):
    """Run ``memmodel serve http`` and yield (process, HTTP port, gRPC port)."""
    port, grpc_port = free_port(), free_port()
    command = [sys.executable, "-W", "ignore", "-m", "memmodel", "serve", "http", str(model)]
    command += ["--port", str(port), "--grpc-port", str(grpc_port), "--name", "net", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stderr.readline()
        assert "is served at" in line, line + process.stderr.read()
        yield process, port, grpc_port
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)
