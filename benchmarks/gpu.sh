#!/usr/bin/env bash
# On a machine with a CUDA device, in at most ten minutes: the tests that need CUDA, then training
# time and peak memory (max_memory_allocated) of the main workloads against torch.cat, all eager:
# compiling seven strategies three times over would not fit.
#
#     bash benchmarks/gpu.sh [DEVICE]        # cuda unless given
#
# Exits non-zero if a test fails or a required bound is missed; figures go to benchmarks/results/.
set -uo pipefail
cd "$(dirname "$0")/.."
device=${1:-cuda}
failed=0

python - "$device" <<'PYTHON' || exit 2
import sys
import torch

device = sys.argv[1]
if not torch.cuda.is_available():
    sys.exit("gpu.sh: torch finds no CUDA device")
print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, CUDA {torch.version.cuda}")
PYTHON

echo "== tests on $device"
timeout 240 python -m pytest -q -k cuda --timeout 120 || failed=1

echo "== training against torch.cat on $device"
timeout 300 python benchmarks/train.py W1 W2 W3 R1 memory --eager --device "$device" || failed=1

exit "$failed"
