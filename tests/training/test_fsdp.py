"""FSDP on two CPU processes: torch shards there too, Lightning alone refuses, so it is tricked."""

import pytest
import torch
from test_ddp import DATA, SCENES, finish, start
from tiny import TINY_VIT, checkpoint_of

pytestmark = pytest.mark.slow

ON_CPU = '''
import torch
from lightning.pytorch.strategies import FSDPStrategy
from lightning.pytorch.trainer.connectors import accelerator_connector
from torch.distributed.fsdp import FullyShardedDataParallel, _optim_utils

build, unflatten = FullyShardedDataParallel.__init__, _optim_utils._unflatten_orig_param_states


def build_on_cpu(self, *arguments, device_id=None, **options):
    build(self, *arguments, device_id=torch.device("cpu"), **options)


def unflatten_a_copy(info, states, name, *options):
    """All moments come through one buffer; from a GPU they are copied to the host, on it not."""
    for state in states.values():
        state[name] = state[name].clone()
    unflatten(info, states, name, *options)


_optim_utils._unflatten_orig_param_states = unflatten_a_copy
accelerator_connector.CUDAAccelerator = object
FSDPStrategy.root_device = property(lambda self: torch.device("cpu"))
FullyShardedDataParallel.__init__ = build_on_cpu
'''
RUN = (
    "train.py",
    "task=joint",
    *TINY_VIT,
    *DATA,
    *SCENES,
    "logger=none optim=adamw trainer.accelerator=cpu trainer.precision=32-true",
    "trainer.devices=2 schedule=constant optim.weight_decay=0.5",
    "trainer.gradient_clip_val=0.5",
)


def weights_of(folder, step):
    checkpoint = checkpoint_of(folder)
    assert checkpoint["global_step"] == step
    return checkpoint["state_dict"]


def test_fsdp_takes_the_steps_of_ddp_and_resumes(tmp_path, monkeypatch):
    """Decay, clipping, uneven validation, checkpoint: shards see flat pieces of all of them."""
    plugin = tmp_path / "fsdp_on_cpu.py"
    plugin.write_text(ON_CPU)
    monkeypatch.setenv("DPT_PLUGINS", str(plugin))
    whole, sharded = tmp_path / "ddp", tmp_path / "fsdp"
    finish(start(*RUN, "trainer.strategy=ddp", "trainer.max_steps=5", f"run_dir={whole}"))
    finish(start(*RUN, "trainer.strategy=fsdp", "trainer.max_steps=3", f"run_dir={sharded}"))
    finish(start("train.py", f"resume={sharded}", "trainer.max_steps=5"))
    expected, found = (weights_of(folder, step=5) for folder in (whole, sharded))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)
