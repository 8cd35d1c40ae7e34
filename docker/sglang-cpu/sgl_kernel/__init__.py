"""Names that SGLang imports at module level; on x86 without AMX it computes with plain torch and calls none of them."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name}: no stand-in on a CPU; only speculative decoding needs it")

    return missing
