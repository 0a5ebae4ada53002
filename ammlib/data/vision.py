"""The one place that imports torchvision, also where its compiled operators do not load.

With a CPU build of torch the torchvision wheel stops at `operator torchvision::nms does not exist`. We use its
data sets, transforms and models, never its detection operators: declaring those two makes the import work.
"""

import sys

import torch

__all__ = ["torchvision"]

try:
    import torchvision
except RuntimeError as error:
    if "torchvision::nms" not in str(error):
        raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    _operators = torch.library.Library("torchvision", "FRAGMENT")  # stays referenced: it unregisters when collected
    for _name in ("nms", "qnms"):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision
