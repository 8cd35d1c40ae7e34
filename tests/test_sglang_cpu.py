"""What docker/sglang-cpu brings in place of SGLang's kernels; the server that uses it: tests/test_determinism.py."""

import json
import os
import random
import struct
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docker" / "sglang-cpu"
CODE = """
import json, sys, torch, sgl_kernel
seeds, positions, columns = json.load(sys.stdin)
found = torch.ops.sgl_kernel.murmur_hash32_cpu.default(
    torch.tensor(seeds, dtype=torch.uint64), torch.tensor(positions), torch.arange(columns))
assert found.dtype == torch.uint32
print(json.dumps(found.tolist()))
"""
LOW = 0xFFFFFFFF


def murmur3(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0, of whole blocks."""

    def turned(x, bits):
        return (x << bits | x >> (32 - bits)) & LOW

    h = 0
    for (k,) in struct.iter_unpack("<I", data):
        h = (turned(h ^ turned(k * 0xCC9E2D51 & LOW, 15) * 0x1B873593 & LOW, 13) * 5 + 0xE6546B64) & LOW
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & LOW
    h = (h ^ h >> 13) * 0xC2B2AE35 & LOW
    return h ^ h >> 16


@pytest.mark.sglang
def test_the_hash_behind_seeded_sampling_is_murmur3_of_seed_position_and_column():
    assert murmur3(b"test") == 0xBA6BD213  # the well-known value
    chance = random.Random(3)
    seeds = [0, 1, 2**32, 2**63, 2**64 - 1, *(chance.getrandbits(64) for _ in range(20))]
    positions, columns = [chance.randrange(2**31) for _ in seeds], 70
    python = os.environ.get("HEADRACE_SGLANG_PYTHON", ".venv-sglang/bin/python")
    found = subprocess.run(
        [python, "-c", CODE],
        input=json.dumps([seeds, positions, columns]),
        env=os.environ | {"PYTHONPATH": str(FOLDER), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == [
        [murmur3(struct.pack("<QII", seed, position, column)) for column in range(columns)]
        for seed, position in zip(seeds, positions, strict=True)
    ]
