"""Tiny runs, started in this process as the command line starts them, and steps of a task."""

import logging
import sys

import torch

from dpt.cli import main

TINY_MODEL = (
    "model.encoder.num_blocks=4",
    "model.encoder.out_indices=[0,1,2,3]",
    "model.encoder.embed_dim=48",
    "model.decoder.reassemble_channels=[8,8,16,16]",
    "model.decoder.fusion_channels=16",
)
TINY_VIT = ("model=dpt_tiny", *TINY_MODEL)
TINY_DATA = ("data.image_size=[32,48]", "data.batch_size=4", "data.num_workers=0")
TINY_SCENES = ("data.train.length=8", "data.val.length=5")
ON_CPU = ("trainer.accelerator=cpu",)
TINY_RUN = (*TINY_MODEL, *TINY_DATA, *ON_CPU, "logger=none", "trainer.max_steps=2")


def losses_of(task, batch, *, steps: int, lr: float) -> list[float]:
    """The losses of so many training steps on one batch."""
    optimizer, losses = torch.optim.AdamW(task.parameters(), lr=lr), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = task.training_step(batch, 0)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def call(*arguments: object) -> None:
    """What ``dpt ARGUMENTS`` does; the log and the process are as before afterwards."""
    log, typed = logging.getLogger("dpt"), sys.argv
    before = log.level, log.propagate, log.handlers[:]
    sys.argv = ["dpt", *map(str, arguments)]
    try:
        main()
    finally:
        sys.argv = typed
        for handler in log.handlers:
            handler.close()
        log.setLevel(before[0])
        log.propagate, log.handlers[:] = before[1:]
