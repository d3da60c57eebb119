"""Fixtures for every test, and one thread for each of them."""

import os
import signal

# Before torch is loaded, here and in the processes that tests start. The tests' tensors are tiny:
# sharing them out costs more than computing them, and on a busy machine idle threads spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

# A shell starts background jobs with SIGINT ignored, and so would be the commands that tests start
# and interrupt. A handler, unlike an ignored signal, is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every device of this machine."""
    return torch.device(request.param)
