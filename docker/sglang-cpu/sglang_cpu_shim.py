"""Lets torchvision's Python part import beside a CPU build of torch (its C++ part is built for CUDA).

Loaded in every process of the environment by sglang_cpu_shim.pth, because SGLang's scheduler and detokenizer are
processes of their own. It registers the schemas of the two operators that torchvision's C++ part would have defined;
no text model ever calls them.
"""

import sys


class _TorchvisionOperators:
    _library = None

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision" and self._library is None:
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            type(self)._library = library
        return None


sys.meta_path.insert(0, _TorchvisionOperators())
