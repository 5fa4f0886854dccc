"""Stands for torch_mlu: made in cuda's image of 2.8 and later; its C module is `_MLUC`."""

import sys

import torch
from allocator import Allocator
from backend import in_the_image_of_cuda, internals

__version__ = "1.30.0"

torch.mlu = in_the_image_of_cuda(
    "mlu",
    Allocator(has_time=True, has_workspace=False),
    ("context", "stacks", "max_entries", "device", "clear_history", "compile_context", "skip_actions"),
)
_MLUC = internals("torch_mlu._MLUC", "mlu", torch.mlu)
sys.modules["torch.mlu"] = torch.mlu
