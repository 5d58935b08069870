"""The implementations that are compared: this project's model and its rivals.

Rivals get what is best for them: scaled-dot-product attention, channels-last, fused AdamW.
transformers computes the same function and gets the same weights;
segmentation_models.pytorch has a similar network.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpt.exporting.graph import Axes, Graph
from dpt.exporting.targets import Source, target_of
from dpt.functional import chunked_argmax
from dpt.losses import CrossEntropyLoss
from dpt.model import DPT, create_model
from dpt.weights.formats import convert

NUM_CLASSES = 150


@dataclass
class Contender:
    """An implementation.

    Attributes:
        name: as printed.
        model: its parameters are trained.
        predict: images to depth (B, H, W), or to class ids (B, H, W).
        loss: images and truth to the scalar that a training step minimises; None if it cannot
            train.
        eager: whether its memory can be counted: it is made of PyTorch tensors.
    """

    name: str
    model: nn.Module
    predict: Callable[[Tensor], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor] | None
    eager: bool = True

    def training_step(
        self, images: Tensor, truth: Tensor, *, dtype: torch.dtype
    ) -> Callable[[], None]:
        """A step of fused AdamW; weights are float32, under autocast for any other type."""
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
    """Nothing for float32."""
    return nullcontext() if dtype is torch.float32 else torch.autocast(device.type, dtype=dtype)


def make_ours(name: str, task: str, size: tuple[int, int]) -> DPT:
    heads: dict[str, dict[str, Any]] = {
        "depth": {"depth": {"kind": "relative", "upsample": "double"}},
        "segmentation": {"segmentation": {"num_classes": NUM_CLASSES, "dropout": 0.1}},
    }
    torch.manual_seed(0)
    return create_model(name, heads=heads[task], encoder={"image_size": list(size)})


def ours(model: DPT, task: str) -> Contender:
    cross_entropy = CrossEntropyLoss()

    def depth_loss(images: Tensor, truth: Tensor) -> Tensor:
        return F.l1_loss(model(images)["depth"].float(), truth)

    def segmentation_loss(images: Tensor, truth: Tensor) -> Tensor:
        out = model(images, raw=True)["segmentation"]
        auxiliary = cross_entropy(out.auxiliary, truth)
        return cross_entropy(out.tensor, truth) + 0.2 * auxiliary

    def labels(images: Tensor) -> Tensor:
        logits = model(images, raw=True)["segmentation"].prediction
        return chunked_argmax(logits, (images.shape[2], images.shape[3]))

    if task == "depth":
        return Contender("dpt", model, lambda x: model(x)["depth"], depth_loss)
    return Contender("dpt", model, labels, segmentation_loss)


def ours_optimized(model: DPT, task: str) -> Contender:
    """:meth:`dpt.DPT.optimize_for_inference`."""
    fast = ours(model.optimize_for_inference(), task)
    return replace(fast, name="dpt, optimized", loss=None, eager=False)


def ours_onnx(model: DPT, task: str) -> Contender:
    """Returns the file of ``dpt export --size`` in ONNX Runtime."""
    graph = Graph.of(model, tasks=[task], with_preprocessing=False).for_inference()
    height, width = model.config.to_dict()["encoder"]["image_size"]
    source = Source(graph, Axes((height, width), ("batch",), (2, height, width), ()), {})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        target = target_of(path)
        target.write(source, path)
        run = target.open(path)

    def predict(images: Tensor) -> Tensor:
        if images.dtype is not torch.float32 or images.device.type != "cpu":
            raise ValueError("ONNX Runtime is compared in fp32 on the CPU: --dtype fp32")
        out = run(images)[task]
        return out if task == "depth" else out.argmax(1)

    return Contender("dpt, ONNX Runtime", model, predict, loss=None, eager=False)


def transformers(model: DPT, task: str) -> Contender:
    """The same weights in transformers' own classes."""
    from transformers import DPTForDepthEstimation, DPTForSemanticSegmentation

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(f"{folder}/ours")
        convert(f"{folder}/ours", f"{folder}/theirs", to="transformers")
        classes = DPTForDepthEstimation if task == "depth" else DPTForSemanticSegmentation
        theirs = classes.from_pretrained(f"{folder}/theirs")
    if task == "depth":
        return Contender(
            "transformers",
            theirs,
            lambda x: theirs(x).predicted_depth,
            lambda x, y: F.l1_loss(theirs(x).predicted_depth.float(), y),
        )
    theirs.config.auxiliary_loss_weight = 0.2
    return Contender(
        "transformers",
        theirs,
        lambda x: theirs(x).logits.argmax(1),
        lambda x, y: theirs(x, labels=y).loss,
    )


def smp(model: DPT, task: str) -> Contender:
    """Returns segmentation_models.pytorch's DPT of the same sizes; for depth with one channel."""
    import segmentation_models_pytorch

    config = model.config.to_dict()
    encoder, decoder = config["encoder"], config["decoder"]
    if encoder["kind"] != "vit":
        raise ValueError(f"--against smp: it has no {encoder['kind']} encoder")
    sizes = {192: "tiny", 384: "small", 768: "base", 1024: "large"}
    theirs = segmentation_models_pytorch.DPT(
        f"tu-vit_{sizes[encoder['embed_dim']]}_patch16_224",
        encoder_weights=None,
        encoder_output_indices=list(encoder["out_indices"]),
        decoder_intermediate_channels=list(decoder["reassemble_channels"]),
        decoder_fusion_channels=decoder["fusion_channels"],
        classes=1 if task == "depth" else NUM_CLASSES,
        dynamic_img_size=True,
        img_size=tuple(encoder["image_size"]),
    )

    def predict(images: Tensor) -> Tensor:
        out = theirs(images)
        return out.squeeze(1) if task == "depth" else out.argmax(1)

    def loss(images: Tensor, target: Tensor) -> Tensor:
        out = theirs(images).float()
        if task == "depth":
            return F.l1_loss(out.squeeze(1), target)
        return F.cross_entropy(out, target, ignore_index=255)

    return Contender("smp*", theirs, predict, loss)


def compiled(rival: Contender) -> Contender:
    """The contender under torch.compile; for predictions its weights are part of the graph."""
    if rival.loss is None:
        raise ValueError(f"--against: {rival.name} cannot be compiled, leave out -compile")
    predict = torch.compile(rival.predict, options={"freezing": True})
    name = f"{rival.name}, compiled"
    return Contender(name, rival.model, predict, torch.compile(rival.loss), eager=False)


CONTENDERS: dict[str, Callable[[DPT, str], Contender]] = {
    "dpt": ours,
    "dpt-optimized": ours_optimized,
    "dpt-onnx": ours_onnx,
    "transformers": transformers,
    "smp": smp,
}


def make_contenders(model: DPT, task: str, against: Sequence[str]) -> list[Contender]:
    """Ours first; ``NAME-compile`` is ``NAME`` under torch.compile."""
    contenders = [ours(model, task)]
    for name in against:
        base = name.removesuffix("-compile")
        if base not in CONTENDERS:
            names = ", ".join(CONTENDERS)
            raise ValueError(f"--against {name}: choose from {names}, or NAME-compile")
        rival = CONTENDERS[base](model, task)
        contenders.append(rival if base == name else compiled(rival))
    return contenders
