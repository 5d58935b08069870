"""Names of PyTorch that are not in its documentation, each with the reason for its use.

Tested with torch 2.14.1. Everything else in the package uses PyTorch's public names.
"""

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor
from torch.export import ExportedProgram
from torch.optim import Adam, Optimizer


def oblivious_sizes() -> AbstractContextManager[Any]:
    """Keeps torch.export from specialising on axes of length 1, as ``torch.onnx`` does itself."""
    from torch.fx.experimental import _config

    # torch makes this module's `patch` at run time
    return _config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]


def drop_guards(program: ExportedProgram) -> None:
    """Drops guards on memory layout ("is it contiguous?"), by which a loaded file would refuse
    sizes that it computes correctly."""
    program._guards_code = []


def unscales_gradients(optimizer: Optimizer) -> bool:
    """Returns whether a fused optimiser unscales float16 gradients itself, inside of its step."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def skips_on_device(optimizer: Optimizer) -> bool:
    """Returns whether it is a fused Adam, which can skip a step without waiting for the device."""
    return isinstance(optimizer, Adam) and bool(optimizer.defaults["fused"])


def set_skipped_on_device(optimizer: Optimizer, is_skipped: Tensor) -> None:
    """Sets whether a fused Adam skips its next step, a bool scalar on the device."""
    # GradScaler sets the same attribute, which Adam reads but does not declare
    optimizer.found_inf = is_skipped.float()  # type: ignore[attr-defined]
