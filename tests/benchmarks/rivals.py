"""Who takes part in the race: this project's model and those that it is compared with."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpt.losses import CrossEntropyLoss
from dpt.model import DPT, create_model
from dpt.weights.formats import convert

NUM_CLASSES = 150


@dataclass
class Contender:
    """A model in the race.

    Attributes:
        name: as printed.
        predict: images to what is compared: depth (B, H, W), or class ids (B, H, W).
        loss: images and truth to the scalar that a training step minimises; None does not train.
        plain: what ``predict`` was before it was compiled; operations are counted on it.
        model: its parameters are trained.
        forward_s, step_s: seconds of each turn.
    """

    name: str
    model: nn.Module
    predict: Callable[[Tensor], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor] | None
    plain: Callable[[Tensor], Tensor] | None = None
    forward_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)

    def make_ready(self, *, device: torch.device, dtype: torch.dtype) -> None:
        """For predictions: cast, and channels-last."""
        self.model.eval().to(device, dtype)
        self.model.to(memory_format=torch.channels_last)

    def training_step(
        self, images: Tensor, truth: Tensor, *, dtype: torch.dtype
    ) -> Callable[[], None]:
        """A step with fused AdamW; under autocast, the weights in float32, for any other type."""
        self.model.float().train()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)

        def step() -> None:
            assert self.loss is not None
            optimizer.zero_grad()
            with autocast(images.device, dtype):
                loss = self.loss(images, truth)
            loss.backward()
            optimizer.step()

        return step


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Of nothing for float32."""
    return nullcontext() if dtype is torch.float32 else torch.autocast(device.type, dtype=dtype)


def make_ours(name: str, task: str, size: tuple[int, int]) -> DPT:
    heads: dict[str, dict[str, Any]] = {
        "depth": {"depth": {"kind": "relative", "upsample": "double"}},
        "segmentation": {"segmentation": {"num_classes": NUM_CLASSES, "dropout": 0.1}},
    }
    torch.manual_seed(0)
    return create_model(name, heads=heads[task], encoder={"image_size": list(size)})


def our_contender(model: DPT, task: str, label: str = "dpt") -> Contender:
    cross_entropy = CrossEntropyLoss()

    def depth_loss(images: Tensor, truth: Tensor) -> Tensor:
        return F.l1_loss(model(images)["depth"].float(), truth)

    def segmentation_loss(images: Tensor, truth: Tensor) -> Tensor:
        out = model(images, upsample_logits=False)
        auxiliary = cross_entropy(out["segmentation_auxiliary"], truth)
        return cross_entropy(out["segmentation"], truth) + 0.2 * auxiliary

    if task == "depth":
        return Contender(label, model, lambda x: model(x)["depth"], depth_loss)
    return Contender(label, model, model.predict_labels, segmentation_loss)


def transformers_contender(ours: DPT, task: str) -> Contender:
    """The same weights in transformers' own classes."""
    from transformers import DPTForDepthEstimation, DPTForSemanticSegmentation

    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(f"{folder}/ours")
        convert(f"{folder}/ours", f"{folder}/theirs", to="transformers")
        if task == "depth":
            depth = DPTForDepthEstimation.from_pretrained(f"{folder}/theirs")
            return Contender(
                "transformers",
                depth,
                lambda x: depth(x).predicted_depth,
                lambda x, y: F.l1_loss(depth(x).predicted_depth.float(), y),
            )
        model = DPTForSemanticSegmentation.from_pretrained(f"{folder}/theirs")
    model.config.auxiliary_loss_weight = 0.2
    return Contender(
        "transformers",
        model,
        lambda x: model(x).logits.argmax(1),
        lambda x, y: model(x, labels=y).loss,
    )


def smp_contender(ours: DPT, task: str) -> Contender:
    """segmentation_models.pytorch's DPT of the same sizes; its depth is one class."""
    import segmentation_models_pytorch as smp

    encoder, decoder = ours.config.to_dict()["encoder"], ours.config.to_dict()["decoder"]
    if encoder["kind"] != "vit":
        raise ValueError(f"--against smp: it has no {encoder['kind']} encoder")
    names = {192: "tiny", 384: "small", 768: "base", 1024: "large"}
    model = smp.DPT(
        f"tu-vit_{names[encoder['embed_dim']]}_patch16_224",
        encoder_weights=None,
        encoder_output_indices=list(encoder["out_indices"]),
        decoder_intermediate_channels=list(decoder["reassemble_channels"]),
        decoder_fusion_channels=decoder["fusion_channels"],
        classes=1 if task == "depth" else NUM_CLASSES,
        dynamic_img_size=True,
        img_size=tuple(encoder["image_size"]),
    )
    if task == "depth":
        return Contender(
            "smp*",
            model,
            lambda x: model(x).squeeze(1),
            lambda x, y: F.l1_loss(model(x).squeeze(1).float(), y),
        )
    return Contender(
        "smp*",
        model,
        lambda x: model(x).argmax(1),
        lambda x, y: F.cross_entropy(model(x).float(), y, ignore_index=255),
    )
