"""Loggers: their faults end no training, and a resumed run keeps its id."""

import pytest
from lightning.pytorch.loggers import CSVLogger

from dpt.training.loggers import ignore_errors, make_wandb


class Unreachable(CSVLogger):
    def log_metrics(self, metrics, step=None):
        raise ConnectionError("no route\nto host")


def test_a_logger_error_is_reported_once(tmp_path, caplog):
    logger = ignore_errors(Unreachable(tmp_path))
    for step in range(3):
        logger.log_metrics({"train/loss": 1.0}, step=step)
    logger.log_hyperparams({"seed": 0})
    (message,) = [r.message for r in caplog.records]
    assert "log_metrics failed (ConnectionError: no route to host); training continues" in message
    assert isinstance(logger, CSVLogger)


def test_wandb_keeps_the_id_of_a_run(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    ids = []
    for folder in ("run", "run", "other"):
        ids.append(make_wandb(save_dir=str(tmp_path / folder)).version)
        wandb.finish()
    assert ids[0] == ids[1] != ids[2]


def test_an_unreachable_service_leaves_the_run_offline(tmp_path, monkeypatch, caplog):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "online")
    init, asked = wandb.init, []

    def unreachable(**options):
        asked.append(options["mode"])
        if options["mode"] == "online":
            raise wandb.errors.CommError("no route to host")
        return init(**options)

    monkeypatch.setattr(wandb, "init", unreachable)
    logger = ignore_errors(make_wandb(save_dir=str(tmp_path)))
    for step in range(3):
        logger.log_metrics({"loss": 1.0}, step=step)
    wandb.finish()
    assert asked == ["online", "offline"]
    assert "no route to host, so this run is logged to" in caplog.text
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
