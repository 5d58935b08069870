"""Names of PyTorch and timm that are not in their documentation, each with the reason for its use.

Tested with torch 2.14.1 and timm 1.0.31. Everything else in the package uses public names. timm
takes two seconds to import, so it is imported inside the functions.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
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


def parts_of_grid_sample() -> dict[Any, Callable[..., Any]]:
    """Returns what replaces ``grid_sample`` in a program by simpler operations."""
    sample = torch.ops.aten.grid_sampler_2d
    known = torch._decomp.get_decompositions([sample])
    return {torch.ops.aten.grid_sampler.default: known[sample.default]}


def compile_package(program: ExportedProgram, path: Path, metadata: Mapping[str, str]) -> None:
    """Compiles a program by AOTInductor to a ``.pt2`` file for this kind of CPU."""
    options = {"aot_inductor.metadata": dict(metadata)}
    write = torch._inductor.aoti_compile_and_package
    write(program, package_path=str(path), inductor_configs=options)


def load_package(path: Path) -> Callable[[Tensor], dict[str, Tensor]]:
    """Returns a file of :func:`compile_package` as a function. The file itself reads the memory of
    images as contiguous, whatever their strides are."""
    package = torch._inductor.aoti_load_package(str(path))
    return lambda images: package(images.contiguous())


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


def pad_before_shift(model: nn.Module, name: str) -> None:
    """Makes Swin blocks pad their maps to whole windows before the shift.

    So do the official DPT models; timm pads after the shift.

    Raises:
        ValueError: the timm model ``name`` has no such blocks.
    """
    from timm.models.swin_transformer import SwinTransformerBlock
    from timm.models.swin_transformer_v2 import SwinTransformerV2Block

    kinds = (SwinTransformerBlock, SwinTransformerV2Block)
    blocks: list[Any] = [module for module in model.modules() if isinstance(module, kinds)]
    if not blocks:
        raise ValueError(f"pad_windows='before_shift' is for Swin and SwinV2, not {name}")
    for block in blocks:
        block._attn = partial(_attend_to_padded, block)  # unlike a method, it can be pickled


def _attend_to_padded(block: Any, map_BhwD: Tensor) -> Tensor:
    """Attends within the windows of a Swin block, with zeros below and right of the map."""
    height, width = map_BhwD.shape[1:3]
    bottom, right = -height % block.window_size[0], -width % block.window_size[1]
    padded = F.pad(map_BhwD, (0, 0, 0, right, 0, bottom))
    attended: Tensor = type(block)._attn(block, padded)
    return attended[:, :height, :width]


def compute_buffers(model: nn.Module, device: torch.device) -> None:
    """Computes the buffers of a timm model that no file holds, if they are on the meta device.

    Args:
        model: a timm model built on the meta device, whose parameters have got their values.
        device: that of the parameters.
    """
    for module in model.modules():
        compute = getattr(module, "init_non_persistent_buffers", None)
        if compute is not None:
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_meta:
                    setattr(module, name, torch.empty_like(buffer, device=device))
            compute()
