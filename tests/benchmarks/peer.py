"""The plain recipe of segmentation_models.pytorch's DPT on data of this project.

``python tests/benchmarks/peer.py task=segmentation data=camvid data.folds=3 steps=1150`` takes the
arguments of ``train.py``, of which it uses ``task``, ``data``, ``seed`` and ``steps``: a tiny ViT
from scratch with a decoder as wide as that of ``dpt_tiny``, AdamW 5e-4 with a cosine schedule,
bf16 (fp32 on a CPU without bf16 instructions), random flips. It runs on a GPU if there is one.
"""

from __future__ import annotations

import sys
import time

import lightning as L
import segmentation_models_pytorch
import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_dir
from lightning.fabric.utilities import move_data_to_device
from omegaconf import OmegaConf

from dpt.config.data import loader_settings, make_dataset, make_eval_loader, make_train_loader
from dpt.config.job import MISTAKES, fail
from dpt.config.objectives import make_objectives
from dpt.files import config_dir
from dpt.functional import has_bf16
from dpt.objectives.batches import same_size_groups, take
from dpt.types import HeadOutput, Preprocessing


def main(overrides: list[str]) -> None:
    with initialize_config_dir(str(config_dir().absolute()), version_base=None):
        config = compose("train", overrides)
    cfg = OmegaConf.to_container(config, resolve=False)
    data = OmegaConf.to_container(config.data, resolve=True)
    L.seed_everything(cfg["seed"], verbose=False)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = loader_settings(data)
    train, val = (make_dataset(data, split) for split in ("train", "val"))
    task = OmegaConf.to_container(config.task, resolve=True)
    (objective,) = make_objectives(task, train).values()
    objective.to(device)
    targets = ("labels",) if objective.target == "labels" else ("depth",)
    batches = make_train_loader(train, settings, {"hflip": 0.5}, cfg["seed"], targets)
    preprocessing = Preprocessing(
        **{**config.model.preprocessing, "image_size": settings.eval_size}
    )
    classes = len(train.info.class_names) if targets == ("labels",) else 1
    model = segmentation_models_pytorch.DPT(
        "tu-vit_tiny_patch16_224",
        encoder_weights=None,
        decoder_intermediate_channels=[24, 48, 96, 192],
        decoder_fusion_channels=64,
        classes=classes,
        dynamic_img_size=True,
        img_size=settings.image_size,
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg["steps"])

    def outputs(images: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=has_bf16(device)):
            maps = model(preprocessing.normalize(images)).float()
        return maps if classes > 1 else F.softplus(maps[:, 0])

    model.train()
    step, seconds = 0, time.perf_counter()
    while step < cfg["steps"]:
        batches.sampler.set_epoch(step // len(batches))
        for batch in batches:
            batch = move_data_to_device(batch, torch.device(device))
            terms = objective.losses(HeadOutput(outputs(batch["image"])), batch)
            optimizer.zero_grad()
            sum(terms.values()).backward()
            optimizer.step()
            schedule.step()
            step += 1
            if step == cfg["steps"]:
                break
    print(f"{step} steps, {(time.perf_counter() - seconds) / 60:.1f} minutes")
    model.eval()
    multiple = 32
    with torch.no_grad():
        for batch in make_eval_loader(val, settings, preprocessing, targets):
            batch = move_data_to_device(batch, torch.device(device))
            for images, positions in same_size_groups(batch):
                pad = [-images.shape[-1] % multiple, -images.shape[-2] % multiple]
                padded = F.pad(images.float(), (0, pad[0], 0, pad[1]), mode="replicate")
                found = outputs(padded)[..., : images.shape[-2], : images.shape[-1]]
                objective.update(HeadOutput(found), take(batch, positions))
    print({k: round(v, 4) for k, v in objective.compute().items() if "/" not in k})


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except MISTAKES as error:
        fail(str(error))
