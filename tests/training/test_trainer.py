"""What is filled in where the trainer's settings leave it open, on one rank and on several."""

from pathlib import Path

import pytest
import yaml
from tiny import run_config

from dpt.training.trainer import make_trainer

CONF = Path(__file__).parents[2] / "conf"
TWO_RANKS = {"strategy": "ddp", "devices": 2}


def trainer_of(batches_per_epoch=1, val_batches=0, val_cost=1.0, callbacks=(), **settings):
    node = yaml.safe_load((CONF / "trainer/default.yaml").read_text())
    node |= {"accelerator": "cpu", "default_root_dir": "."} | settings
    sizes = f"data.image_size=[200,200] data.eval_size=[200,{round(300 * val_cost)}]"
    config = run_config(
        *sizes.split(), trainer=node, logger={}, callbacks=dict(callbacks), steps=400
    )
    return make_trainer(config, batches_per_epoch, val_batches=val_batches)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 40),  # 400 steps
        ({"accumulate_grad_batches": 3}, 160),  # two epochs: each ends with a step of 2 batches
        ({"max_steps": 25, "accumulate_grad_batches": 2}, 6),  # 5 would lie amid a step
        ({"max_epochs": 24, **TWO_RANKS}, 96),  # each sees 40 of them
        ({"max_epochs": 24, "limit_train_batches": 0.5, **TWO_RANKS}, 48),
        ({"max_epochs": 24, "val_check_interval": 7}, 7),
        ({"max_epochs": 24, "check_val_every_n_epoch": 2}, 1.0),
        # validations take at most a fifth of a run
        ({"val_batches": 10, "val_cost": 1.1}, 45),  # 9 of them, the last one at the end
        ({"val_batches": 10_000}, 400),  # the last one is always made
        ({"val_batches": 20, "accumulate_grad_batches": 4}, 160),  # a step is longer
        ({"val_batches": 40, **TWO_RANKS}, 80),  # 20 for each rank
        ({"val_batches": 40, "limit_val_batches": 0.5}, 80),
        ({"val_batches": 50, "max_steps": 10_000, "max_time": "00:08:00:00"}, 200),  # may end early
    ],
)
def test_a_run_validates_ten_times_unless_that_takes_too_long(settings, expected):
    assert trainer_of(80, **settings).val_check_interval == expected


def test_without_the_callback_no_other_writes_checkpoints():
    assert trainer_of().checkpoint_callbacks == []
