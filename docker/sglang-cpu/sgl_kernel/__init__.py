"""What SGLang takes from its package of CPU kernels, on an x86 without AMX, where it computes with plain torch.

Most of it is names that it imports at module level and never calls. One is real: the hash behind seeded sampling.
"""

import torch

_library = torch.library.Library("sgl_kernel", "FRAGMENT")
_library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")


def _murmur_hash32(seed, positions, col_indices):
    """MurmurHash3 (32 bits, seed 0) of the blocks seed's low and high half, position, column.

    seed [n] 64 bits, positions [n], col_indices [m] integers -> [n, m] uint32.
    """
    seed = seed.view(torch.int64)  # torch shifts no unsigned integers; what is masked needs no sign
    rows = _block(_block(_block(torch.zeros_like(seed), seed & _LOW), (seed >> 32) & _LOW), positions.long() & _LOW)
    h = _block(rows[:, None], col_indices.long()[None, :] & _LOW) ^ 16  # bytes hashed
    h = (h ^ (h >> 16)) * 0x85EBCA6B & _LOW
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & _LOW
    return (h ^ (h >> 16)).to(torch.uint32)


_LOW = 0xFFFFFFFF


def _block(h, k):
    k = k * 0xCC9E2D51 & _LOW
    k = ((k << 15) | (k >> 17)) * 0x1B873593 & _LOW
    h = h ^ k
    return ((h << 13) | (h >> 19)) * 5 + 0xE6546B64 & _LOW


_library.impl("murmur_hash32_cpu", _murmur_hash32, "CPU")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name}: no stand-in on a CPU; only speculative decoding needs it")

    return missing
