"""The plain recipe of segmentation_models.pytorch's DPT on data of this project.

``python tests/benchmarks/peer.py task=segmentation data=camvid data.folds=3 steps=1150`` takes the
arguments of ``train.py``, of which it uses ``task``, ``data``, ``seed`` and ``steps``: a tiny ViT
from scratch with a decoder as wide as that of ``dpt_tiny``, AdamW 5e-4 with a cosine schedule,
bf16 (fp32 on a CPU without bf16 instructions), random flips. It runs on a GPU if there is one.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

import lightning as L
import segmentation_models_pytorch
import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_dir
from lightning.fabric import Fabric
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dpt.config.build import make_eval_loader, make_objectives, make_train_loader
from dpt.config.objects import read_part
from dpt.config.run_folder import MISTAKES, fail
from dpt.config.schema import RunConfig
from dpt.data import TrainTransform
from dpt.files import config_dir
from dpt.functional import has_bf16
from dpt.objectives import Objective
from dpt.objectives.base import same_size_groups, take
from dpt.types.outputs import HeadOutput
from dpt.types.preprocessing import Preprocessing
from dpt.types.samples import Batch

MULTIPLE = 32  # of the sides of its images


class Peer(nn.Module):
    """A DPT head with a tiny ViT from scratch; images in 0..255 to class logits or depth."""

    def __init__(self, num_classes: int, image_size: Sequence[int], rule: Preprocessing) -> None:
        super().__init__()
        self.is_depth = num_classes == 1
        self.preprocessing = rule
        self.network = segmentation_models_pytorch.DPT(
            "tu-vit_tiny_patch16_224",
            encoder_weights=None,
            decoder_intermediate_channels=[24, 48, 96, 192],
            decoder_fusion_channels=64,
            classes=num_classes,
            dynamic_img_size=True,
            img_size=tuple(image_size),
        )

    def forward(self, images: Tensor) -> HeadOutput:
        device, (height, width) = images.device.type, images.shape[-2:]
        padding = (0, -width % MULTIPLE, 0, -height % MULTIPLE)
        padded = F.pad(images.float(), padding, mode="replicate")
        with torch.autocast(device, torch.bfloat16, enabled=has_bf16(device)):
            maps = self.network(self.preprocessing.normalize(padded)).float()
        maps = maps[..., :height, :width]
        return HeadOutput(F.softplus(maps[:, 0]) if self.is_depth else maps)


def train(peer: Peer, objective: Objective, batches: DataLoader, steps: int) -> None:
    optimizer = torch.optim.AdamW(peer.parameters(), lr=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    epochs = range(math.ceil(steps / len(batches)))
    for epoch in epochs:
        batches.sampler.set_epoch(epoch)
        for batch in islice(batches, steps - epoch * len(batches)):
            terms = objective.losses(peer(batch["image"]), batch)
            optimizer.zero_grad()
            sum(terms.values()).backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def score(peer: Peer, objective: Objective, batches: Iterable[Batch]) -> dict[str, float]:
    peer.eval()
    for batch in batches:
        for images, positions in same_size_groups(batch):
            objective.update(peer(images), take(batch, positions))
    return {k: round(v, 4) for k, v in objective.compute().items() if "/" not in k}


def main(overrides: list[str]) -> None:
    with initialize_config_dir(str(config_dir().absolute()), version_base=None):
        config = compose("train", overrides)
    L.seed_everything(config.seed, verbose=False)
    run = RunConfig.read(OmegaConf.to_container(config, resolve=True))
    settings = run.data.loader
    train_set, val_set = (run.data.make(split) for split in ("train", "val"))
    (objective,) = make_objectives(run.task, train_set).values()
    targets = ("labels",) if objective.target == "labels" else ("depth",)
    rule = Preprocessing(**{**config.model.preprocessing, "image_size": settings.eval_size})
    num_classes = len(train_set.info.class_names) if targets == ("labels",) else 1
    peer = Peer(num_classes, settings.image_size, rule)
    fabric = Fabric(accelerator="auto", devices=1)
    fabric.to_device(objective)
    fabric.to_device(peer)
    flips = read_part({"hflip": 0.5}, "augment", TrainTransform)
    loaders = fabric.setup_dataloaders(
        make_train_loader(replace(run, augment=flips), train_set, targets),
        make_eval_loader(val_set, settings, rule, targets),
        use_distributed_sampler=False,
    )
    begun = time.perf_counter()
    train(peer, objective, loaders[0], config.steps)
    print(f"{config.steps} steps, {(time.perf_counter() - begun) / 60:.1f} minutes")
    print(score(peer, objective, loaders[1]))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except MISTAKES as error:
        fail(str(error))
