"""Training: the LightningModule, optimisers, callbacks, checkpoints, resume."""
