"""Operations that save memory or time. Each docstring names the plain operation it replaces.

A head or an encoder of your own need not use them: the plain operation is always correct.

Shapes: B batch, C channels, K classes, (h, w) a map, (H, W) the size that it is upsampled to.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.nn.functional import all_reduce
from torch.utils.checkpoint import checkpoint

from dpt.types.preprocessing import OutputResize

NO_CONTEXT: AbstractContextManager[None] = nullcontext()

# --- Precision

EMULATED = "this device has no bf16 instructions (as far as torch can tell): fp32 is faster"


@functools.cache
def has_bf16(device: str) -> bool:
    """Whether ``cpu`` or ``cuda`` has bf16 matrix instructions; a CPU without emulates them slowly.

    False for CPUs where torch is older than 2.10, which cannot tell.
    """
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    features: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return device == "cpu" and any(features.get(k, False) for k in ("amx_bf16", "avx512_bf16"))


def sum_dtype(device: torch.device) -> torch.dtype:
    """Returns float64, or float32 on devices that have no float64 (Apple's mps)."""
    return torch.float32 if device.type == "mps" else torch.float64


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Switches autocast off; the meta device has none."""
    return NO_CONTEXT if device.type == "meta" else torch.autocast(device.type, enabled=False)


def to_channels_last(module: nn.Module) -> None:
    """Stores the weights of 2-D convolutions in channels-last order, in place.

    ``module.to(memory_format=torch.channels_last)`` fails if there is a 3-D convolution.
    """
    for parameter in module.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


# --- Several processes


def mean_over_processes(values: Tensor) -> Tensor:
    """Returns the mean of tensors of one shape, one a process; gradients flow to all of them."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return values
    return all_reduce(values) / dist.get_world_size()


# --- Sizes while torch.export traces


def exporting() -> bool:
    """Whether torch.export is tracing. (Under torch.compile a new size compiles a new graph.)"""
    return torch.compiler.is_exporting()


def same_size(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two sizes are equal; in export, where they are symbols, for images of every size."""
    if not exporting():
        return tuple(one) == tuple(other)
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return all(statically_known_true(a == b) for a, b in zip(one, other, strict=True))


# --- Resizing


def upsample(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Returns bilinear maps (B, C, H, W) with aligned corners, as in DPT's decoder."""
    if same_size(maps.shape[-2:], size):
        return maps
    if exporting() and same_size(size, [2 * side for side in maps.shape[-2:]]):
        # ONNX Runtime keeps its blocked layout with a factor, and is twice as fast as with a size
        return F.interpolate(maps, scale_factor=2.0, mode="bilinear", align_corners=True)
    return F.interpolate(maps, size=size, mode="bilinear", align_corners=True)


def resize(maps: Tensor, size: tuple[int, int], rule: OutputResize = "bilinear") -> Tensor:
    """Returns maps (B, C, h, w) at ``size``: (B, C, H, W); ``bilinear_scores`` is ``bilinear``."""
    if rule == "bilinear_aligned" or same_size(maps.shape[-2:], size):
        return upsample(maps, size)
    mode = "bilinear" if rule == "bilinear_scores" else rule
    return F.interpolate(maps, size=size, mode=mode, align_corners=False)


_GUIDE_RADIUS = 2  # pixels of the smaller map
_GUIDE_COLOR = 0.05  # standard deviation of a difference of colours in 0..1
_GUIDE_PIXELS = 2**20  # of the result that are computed at once
_GUIDE_LEAST = 1e-8  # weight of another colour: where no pixel is alike, position alone counts


def guided_resize(maps: Tensor, guide: Tensor) -> Tensor:
    """Returns maps (1, C, h, w) at the size of an image, with edges where its colours have some.

    Joint bilateral upsampling (Kopf et al. 2007, section 3): each pixel is a mean of the map's
    nearest 5 x 5 pixels, whose weights fall with the distance (a standard deviation of one pixel of
    the map) and with the difference of the colours. In place of :func:`resize`.

    Args:
        maps: at most as large as the image.
        guide: the image, float (3, H, W) in 0..1.
    """
    (h, w), (height, width) = maps.shape[-2:], guide.shape[-2:]
    small = F.interpolate(guide[None], size=(h, w), mode="area")[0]
    steps = torch.arange(-_GUIDE_RADIUS, _GUIDE_RADIUS + 1, device=maps.device)

    def nearby(count: int, size: int) -> tuple[Tensor, Tensor]:
        """Returns indices (5, size) along a side of the map, and the weights of their distance."""
        place = (torch.arange(size, device=maps.device) + 0.5) * count / size - 0.5
        indices = place.round() + steps[:, None]
        return indices.long().clamp(0, count - 1), (-(indices - place).square() / 2).exp()

    rows, columns = nearby(h, height), nearby(w, width)
    parts = []
    for start in range(0, height, max(1, _GUIDE_PIXELS // width)):
        span = slice(start, start + max(1, _GUIDE_PIXELS // width))
        image = guide[:, span]
        total = maps.new_zeros(1, maps.shape[1], *image.shape[1:])
        weights = maps.new_zeros(image.shape[1:])
        for row, of_row in zip(rows[0][:, span], rows[1][:, span], strict=True):
            for column, of_column in zip(*columns, strict=True):
                difference = (small[:, row][:, :, column] - image).square_().sum(0)
                alike = difference.mul_(-0.5 / _GUIDE_COLOR**2).exp_().add_(_GUIDE_LEAST)
                weight = alike.mul_(of_row[:, None]).mul_(of_column)
                total += maps[:, :, row][:, :, :, column] * weight
                weights += weight
        parts.append(total / weights)
    return torch.cat(parts, dim=2)


# --- Recomputation in the backward pass

save_memory: bool | None = None
"""Whether :func:`recompute` recomputes in this process (``model.save_memory``). None: it does,
except in bfloat16 on a CPU, where it makes a training step 10 % slower."""


def recompute(
    function: Callable[..., Tensor],
    *inputs: Tensor,
    random: bool = False,
    context: AbstractContextManager[None] = NO_CONTEXT,
) -> Tensor:
    """Returns ``function(*inputs)``, keeping only ``inputs`` and captured tensors for backward.

    A linear layer or a convolution at the end of ``function`` is not computed again. Without
    ``save_memory`` everything is kept. With ``random``, the recomputation draws the same random
    numbers. The recomputation runs within ``context``.
    """
    recomputes = save_memory
    if recomputes is None:
        is_bf16 = inputs[0].dtype == torch.bfloat16 and inputs[0].device.type == "cpu"
        recomputes = not (is_bf16 or torch.is_autocast_enabled("cpu"))
    # torch.compile chooses by itself
    if not recomputes or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return function(*inputs)
    return checkpoint(
        function,
        *inputs,
        use_reentrant=False,
        preserve_rng_state=random,
        determinism_check="none",
        context_fn=lambda: (NO_CONTEXT, context),
    )


def norm_linear(norm: nn.Module | None, linear: nn.Module, x: Tensor) -> Tensor:
    """Returns ``linear(norm(x))``, or ``linear(x)``; the output of ``norm`` is not kept."""
    if norm is None:
        return linear(x)
    return recompute(lambda x: linear(norm(x)), x)


def act_linear(act: Callable[[Tensor], Tensor], linear: nn.Module, x: Tensor) -> Tensor:
    """Returns ``linear(act(x))``; the output of ``act`` is not kept."""
    return recompute(lambda x: linear(act(x)), x)


def upsample_conv2d(maps: Tensor, size: tuple[int, int], conv: nn.Module) -> Tensor:
    """Returns ``conv(upsample(maps, size))``; the upsampled map is not kept."""
    return recompute(lambda maps: conv(upsample(maps, size)), maps)


def norm_relu_conv2d(
    norm: nn.Module, conv: nn.Module, x: Tensor, *, dropout: nn.Module | None = None
) -> Tensor:
    """Returns ``conv(dropout(relu(norm(x))))``; only ``x`` is kept for backward."""

    def plain(x: Tensor) -> Tensor:
        y = F.relu(norm(x))
        return conv(y if dropout is None else dropout(y))

    if isinstance(norm, nn.SyncBatchNorm):  # recomputation would wait for the other processes
        return plain(x)
    context = _FrozenStatistics(norm) if isinstance(norm, nn.BatchNorm2d) else NO_CONTEXT
    return recompute(plain, x, random=dropout is not None, context=context)


class _FrozenStatistics(AbstractContextManager[None]):
    """Recomputation must not update the running statistics again. Can be entered many times."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        self.norm = norm

    def __enter__(self) -> None:
        self.saved = self.norm.momentum, self.norm.num_batches_tracked
        self.norm.momentum, self.norm.num_batches_tracked = 0.0, None

    def __exit__(self, *error: object) -> None:
        self.norm.momentum, self.norm.num_batches_tracked = self.saved


# --- Full-size logits, a band of rows at a time

VALUES_AT_ONCE = {"cpu": 2**20, "cuda": 2**26}
"""Logits per band: as many as fit into a CPU's cache, or as keep a GPU busy."""
FEW_CLASSES = 32
"""With fewer classes than this, all full-size logits at once are faster than bands."""
MOST_AT_ONCE = 2**26
"""Largest number of full-size logits for an argmax without bands: 256 MB in float32."""


def bands(logits: Tensor, size: tuple[int, int]) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """Yields rows of logits (B, K, h, w) upsampled to ``size``, in bands of few values.

    A band is: the slice of its rows; the slice of the source rows; for each row, the
    index of its upper source row in that slice (int64), and the weight of the lower one (float64).
    """
    batch, classes, low, _ = logits.shape
    budget = VALUES_AT_ONCE.get(logits.device.type, VALUES_AT_ONCE["cuda"])
    count = max(1, budget // max(1, batch * classes * size[1]))
    scale = (low - 1) / (size[0] - 1) if size[0] > 1 else 0.0
    for start in range(0, size[0], count):
        rows = slice(start, min(start + count, size[0]))
        positions = torch.arange(rows.start, rows.stop, dtype=torch.float64) * scale
        upper = positions.floor().long().clamp_(max=max(low - 2, 0))
        first, last = int(upper[0]), min(int(upper[-1]) + 2, low)
        yield rows, slice(first, last), upper - first, positions - upper


def upsample_rows(logits: Tensor, upper: Tensor, weight: Tensor, width: int) -> Tensor:
    """Returns upsampled rows (B, rows, width, K) of source rows (B, K, h, w), see :func:`bands`."""
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    last = exact.permute(0, 2, 3, 1)  # softmax and argmax are fastest over the last axis
    upper = upper.to(logits.device)
    lower = (upper + 1).clamp(max=last.shape[1] - 1)
    weight = weight.to(exact)[:, None, None]
    rows = torch.lerp(last.index_select(1, upper), last.index_select(1, lower), weight)
    return upsample(rows.permute(0, 3, 1, 2), (rows.shape[1], width)).permute(0, 2, 3, 1)


def chunked_argmax(
    logits: Tensor,
    size: tuple[int, int],
    rule: OutputResize = "bilinear_aligned",
    *,
    dtype: torch.dtype = torch.long,
) -> Tensor:
    """Returns ``resize(logits, size, rule).argmax(1)``, (B, H, W) of logits (B, K, h, w).

    By ``bilinear_scores`` their exponentials are resized.
    """
    if rule == "bilinear_scores":
        logits = logits.exp()
    batch, classes = logits.shape[:2]
    is_aligned = rule == "bilinear_aligned"
    at_once = max(1, MOST_AT_ONCE // max(1, batch * size[0] * size[1]))  # classes
    is_small = classes <= at_once and not (is_aligned and classes >= FEW_CLASSES)
    if is_small or torch.compiler.is_compiling():  # a compiler fuses by itself
        return resize(logits, size, rule).max(dim=1).indices.to(dtype)  # argmax is 5 times slower
    ids = logits.new_zeros((batch, *size), dtype=dtype)
    if is_aligned:
        for rows, source, upper, weight in bands(logits, size):
            ids[:, rows] = upsample_rows(logits[:, :, source], upper, weight, size[1]).argmax(-1)
        return ids
    best = logits.new_full((batch, *size), -torch.inf)
    for first in range(0, classes, at_once):
        values, classes_here = resize(logits[:, first : first + at_once], size, rule).max(dim=1)
        ids = torch.where(values > best, (first + classes_here).to(dtype), ids)
        best = torch.maximum(best, values)
    return ids


PixelLoss = Callable[[Tensor, Tensor], Tensor]
"""Logits (N, K) and labels (N,) to losses (N,)."""


class _ChunkedPixelLoss(torch.autograd.Function):
    """The gradient of the small logits is computed in the forward pass, band by band."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, scale: Tensor, loss: PixelLoss) -> Tensor:
        size = (labels.shape[1], labels.shape[2])
        grad = torch.zeros_like(logits) if ctx.needs_input_grad[0] else None
        total = scale.new_zeros(())
        for rows, source, upper, weight in bands(logits, size):
            with torch.set_grad_enabled(grad is not None):
                band = logits[:, :, source].detach().requires_grad_(grad is not None)
                upsampled = upsample_rows(band, upper, weight, size[1]).flatten(0, 2)
                pixels = loss(upsampled, labels[:, rows].flatten())
                subtotal = (pixels.view(len(scale), -1).sum(1) * scale).sum()
            if grad is not None:
                grad[:, :, source] += torch.autograd.grad(subtotal, band)[0]
            total += subtotal.detach()
        ctx.save_for_backward(grad)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = ctx.saved_tensors
        return grad * grad_total, None, None, None


def chunked_pixel_loss(logits: Tensor, labels: Tensor, scale: Tensor, loss: PixelLoss) -> Tensor:
    """Returns the loss of ``upsample(logits, (H, W))``, summed over pixels, image i times scale[i].

    From ``FEW_CLASSES`` classes on, upsampled logits and their softmax are computed in bands, and
    only the gradient of the small logits is kept for backward (without torch.compile).

    Args:
        logits: float32 or float64 (B, K, h, w).
        labels: int64 (B, H, W).
        scale: float (B,).
        loss: also takes maps: logits (B, K, H, W) and labels (B, H, W) to (B, H, W).
    """
    if logits.shape[1] >= FEW_CLASSES and not torch.compiler.is_compiling():
        return _ChunkedPixelLoss.apply(logits, labels, scale, loss)
    pixels = loss(upsample(logits, (labels.shape[1], labels.shape[2])), labels)
    return (pixels.flatten(1).sum(1) * scale).sum()
