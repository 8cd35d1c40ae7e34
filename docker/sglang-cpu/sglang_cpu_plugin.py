"""--enable-deterministic-inference on a CPU: a request's tokens depend on its seed alone, not on what runs beside it.

SGLang calls `register` in each of its processes, as it does with every plugin (sglang.srt.plugins). On a CPU it has no
attention that it calls deterministic, and its products of matrices that do not depend on the batch are Triton's.

    torch_native attention   one sequence after the other: the batch has no part in it; SGLang leaves its prefix cache
                             off then, since another's prefix was computed in pieces of other lengths
    products of matrices     MKL has other kernels for 1, 2 and 3 rows than for more, where a row does not depend on
                             how many there are; so there are never fewer than 4 (seen in float32 on one thread of a
                             CPU with AVX-512, 4 to 17,000 rows, 64 to 1,536 wide)
"""

ROWS = 4


def register():
    from sglang.srt.arg_groups.choices import add_deterministic_attention_backend_choices
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    add_deterministic_attention_backend_choices(["torch_native"])
    place = "sglang.srt.batch_invariant_ops.enable_batch_invariant_mode"
    HookRegistry.register(place, enable_batch_invariant_mode, HookType.REPLACE)


def enable_batch_invariant_mode(*_):
    import torch

    library = torch.library.Library("aten", "IMPL")

    def padded(a):
        return torch.nn.functional.pad(a, (0, 0, 0, ROWS - len(a))) if len(a) < ROWS else a

    def mm(a, b):
        product = a.new_empty(max(ROWS, len(a)), b.shape[1])
        return torch.mm(padded(a), b, out=product)[: len(a)]

    def addmm(bias, a, b, *, beta=1, alpha=1):
        return beta * bias + alpha * mm(a, b)

    library.impl("mm", mm, "CPU")
    library.impl("addmm", addmm, "CPU")
    enable_batch_invariant_mode.library = library  # it lasts as long as this does
