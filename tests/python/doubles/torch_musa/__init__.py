"""Stands for torch_musa: made in cuda's image, without `clear_history`; its C module is `_MUSAC`."""

import sys

import torch
from allocator import Allocator
from backend import in_the_image_of_cuda, internals

__version__ = "2.9.0"

torch.musa = in_the_image_of_cuda(
    "musa", Allocator(has_time=True, has_workspace=False), ("context", "stacks", "max_entries", "device")
)
_MUSAC = internals("torch_musa._MUSAC", "musa", torch.musa)
sys.modules["torch.musa"] = torch.musa
