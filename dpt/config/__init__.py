"""From a composed configuration to typed objects; the only package that knows OmegaConf."""
