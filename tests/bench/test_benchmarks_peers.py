from importlib import import_module, util

import pytest
import torch

from harness import strategy
from memmodel.bench import measure

SMALL = "W2/32"
TOLERANCE = 1e-4
TORCH_PEERS = {
    "cat SDPA": ("concatenate:make", {"sdpa": True}),
    "AttentionCell": ("library:make_fast", {}),
    "any cell": ("library:make_any", {}),
    "SlotMemory": ("library:make_slot_memory", {}),
    ".data Function": ("data_write:make", {}),
    "two passes": ("two_pass:make", {}),
    "allow_mutation_on_saved_tensors": ("saved_tensor_mutation:make", {}),
}
OTHER_PEERS = {
    "JAX scan": ("jax_loop:make_scan", {}),
    "Equinox": ("jax_loop:make_equinox", {"every_step": False}),
    "Equinox, checkpoint every step": ("jax_loop:make_equinox", {"every_step": True}),
    "TF TensorArray": ("tf_array:make", {}),
}


def make(factory, **arguments):
    module, _, function = factory.partition(":")
    return getattr(import_module(f"peers.{module}"), function)(**arguments)


@pytest.mark.parametrize("peer", TORCH_PEERS)
def test_pytorch_peers_do_the_same_work(peer, device):
    factory, arguments = TORCH_PEERS[peer]
    expected = make("concatenate:make", workload=SMALL, device=str(device))()
    found = make(factory, workload=SMALL, device=str(device), **arguments)()
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("factory", ["make_fast", "make_any"])
def test_recurrent_strategies_do_the_same_work(factory, device):
    arguments = {"workload": "R1/16", "device": str(device)}
    expected = make("concatenate:make", **arguments)()
    found = make(f"library:{factory}", **arguments)()
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.skipif(
    not all(util.find_spec(name) for name in ("jax", "equinox", "tensorflow")),
    reason="peers of the extra 'bench' are not installed",
)
def test_peers_of_other_frameworks_do_the_same_work():
    peers = [
        strategy(name, f"peers.{factory}", workload=SMALL, **arguments)
        for name, (factory, arguments) in OTHER_PEERS.items()
    ]
    cat = strategy("cat", "peers.concatenate:make", workload=SMALL)
    found = measure([cat, *peers], rounds=0, peak=False, reference="cat", tolerance=TOLERANCE)
    assert {name: row.error for name, row in found.items()} == dict.fromkeys(found)
