"""Products of cheap things, which keep only the cheap thing's input for backward.

Autograd keeps the input of every product. Where that is a LayerNorm's, a GELU's or an upsampling's
output it is large and cheap to make again, so these functions make it again: the same numbers, and
a third less memory for a ViT block. ``torch.compile`` decides such things by itself and gets the
plain form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Cheap = Callable[..., Tensor]


def _again(cheap: Cheap, inputs: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
    """``cheap(*inputs)`` once more, differentiable in the inputs that need it."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_(t.requires_grad) for t in inputs]
        return cheap(*leaves), leaves


def _through(made: Tensor, leaves: list[Tensor], grad: Tensor | None) -> list[Tensor | None]:
    """Gradients of the inputs, given that of what was made of them."""
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not wanted or grad is None:
        return [None] * len(leaves)
    found = iter(torch.autograd.grad(made, wanted, grad.to(made.dtype)))
    return [next(found) if leaf.requires_grad else None for leaf in leaves]


class LinearOf(torch.autograd.Function):
    """F.linear(cheap(*inputs), weight, bias)."""

    @staticmethod
    def forward(
        ctx: Any, cheap: Cheap, weight: Tensor, bias: Tensor | None, *inputs: Tensor
    ) -> Tensor:
        ctx.cheap = cheap
        ctx.save_for_backward(weight, *inputs)
        return F.linear(cheap(*inputs).to(weight.dtype), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, *inputs = ctx.saved_tensors
        _, needs_weight, needs_bias, *needs_inputs = ctx.needs_input_grad
        made, leaves = _again(ctx.cheap, tuple(inputs))
        rows = grad.flatten(0, -2)
        grad_weight = grad_bias = grad_made = None
        if needs_weight:
            grad_weight = rows.t() @ made.detach().flatten(0, -2).to(rows.dtype)
        if needs_bias:
            grad_bias = rows.sum(0)
        if any(needs_inputs):
            grad_made = grad @ weight
        return None, grad_weight, grad_bias, *_through(made, leaves, grad_made)


class ConvOf(torch.autograd.Function):
    """F.conv2d(cheap(*inputs), weight, bias, padding=padding); backward calls ``again``."""

    @staticmethod
    def forward(
        ctx: Any,
        cheap: Cheap,
        again: Cheap,
        padding: tuple[int, int],
        weight: Tensor,
        bias: Tensor | None,
        *inputs: Tensor,
    ) -> Tensor:
        ctx.again, ctx.padding = again, padding
        ctx.bias_shape = None if bias is None else list(bias.shape)
        ctx.save_for_backward(weight, *inputs)
        return F.conv2d(cheap(*inputs).to(weight.dtype), weight, bias, padding=padding)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, *inputs = ctx.saved_tensors
        _, _, _, needs_weight, needs_bias, *needs_inputs = ctx.needs_input_grad
        made, leaves = _again(ctx.again, tuple(inputs))
        grad_made, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
            grad,
            made.detach().to(weight.dtype),
            weight,
            ctx.bias_shape,
            [1, 1],
            list(ctx.padding),
            [1, 1],
            False,
            [0, 0],
            1,
            [any(needs_inputs), needs_weight, needs_bias],
        )
        return None, None, None, grad_weight, grad_bias, *_through(made, leaves, grad_made)


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether the module is what it seems: not a user's replacement, nothing hooked."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return type(module) is kind and not any(hooks)


def is_plain_conv(conv: nn.Module, kind: type[nn.Conv2d] = nn.Conv2d) -> bool:
    """Whether it is a convolution of stride 1 over zeros, as the functions here write it out."""
    return (
        is_plain(conv, kind)
        and isinstance(conv, nn.Conv2d)
        and conv.stride == conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
    )


def _saves() -> bool:
    plain = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return torch.is_grad_enabled() and not plain


def _as_autocast(tensor: Tensor | None) -> Tensor | None:
    if tensor is None:
        return None
    device = tensor.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


def linear_of(cheap: Cheap, linear: nn.Module, *inputs: Tensor) -> Tensor:
    """linear(cheap(*inputs)), keeping ``inputs`` for backward instead of what is made of them.

    Args:
        cheap: a function of tensors, without randomness and without state.
        linear: an ``nn.Linear``; anything else is called as it is.
    """
    if not _saves() or not is_plain(linear, nn.Linear):
        return linear(cheap(*inputs))
    assert isinstance(linear, nn.Linear)
    weight, bias = _as_autocast(linear.weight), _as_autocast(linear.bias)
    return LinearOf.apply(cheap, weight, bias, *inputs)


def conv_of(cheap: Cheap, conv: nn.Module, *inputs: Tensor, again: Cheap | None = None) -> Tensor:
    """conv(cheap(*inputs)); see :func:`linear_of`.

    ``again`` stands in for ``cheap`` in backward where that has a state to leave alone.
    """
    if not _saves() or not is_plain_conv(conv):
        return conv(cheap(*inputs))
    assert isinstance(conv, nn.Conv2d)
    weight, bias = _as_autocast(conv.weight), _as_autocast(conv.bias)
    return ConvOf.apply(cheap, again or cheap, conv.padding, weight, bias, *inputs)


def linear_of_norm(norm: nn.Module | None, linear: nn.Module, x: Tensor) -> Tensor:
    """linear(norm(x)), or linear(x) without a norm; a LayerNorm's output is not kept."""
    if norm is None:
        return linear(x)
    if not is_plain(norm, nn.LayerNorm) or norm.weight is None or norm.bias is None:
        return linear(norm(x))
    assert isinstance(norm, nn.LayerNorm)
    cheap = partial(_layer_norm, eps=norm.eps)
    return linear_of(cheap, linear, x, norm.weight, norm.bias)


def _layer_norm(x: Tensor, gain: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    return F.layer_norm(x.to(gain.dtype), gain.shape, gain, bias, eps)


def conv_of_norm_relu(
    norm: nn.Module, conv: nn.Module, x: Tensor, *, dropout: float = 0.0
) -> Tensor:
    """conv(dropout(relu(norm(x)))); of all these only ``x`` and the mask are kept.

    Args:
        dropout: share of values set to zero; 0 outside training.
    """
    keep = [_keep_mask(x, dropout)] if dropout else []

    def made_by(normalise: Cheap) -> Cheap:
        def made(x: Tensor, gain: Tensor, bias: Tensor, *keep: Tensor) -> Tensor:
            return _drop(F.relu(normalise(x, gain, bias)), keep, dropout)

        return made

    if not is_plain(norm, nn.BatchNorm2d) or norm.weight is None:
        return conv(_drop(F.relu(norm(x)), keep, dropout))
    assert isinstance(norm, nn.BatchNorm2d)
    by_batch = norm.training or norm.running_mean is None

    def again(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:  # the running mean moves once
        mean, var = (None, None) if by_batch else (norm.running_mean, norm.running_var)
        return F.batch_norm(x, mean, var, gain, bias, by_batch, 0.0, norm.eps)

    return conv_of(
        made_by(lambda x, gain, bias: norm(x)),
        conv,
        x,
        norm.weight,
        norm.bias,
        *keep,
        again=made_by(again),
    )


def _drop(y: Tensor, keep: Sequence[Tensor], rate: float) -> Tensor:
    return y * keep[0] * (1 / (1 - rate) if rate < 1 else 0.0) if keep else y


def _keep_mask(x: Tensor, dropout: float) -> Tensor:
    return torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - dropout)
