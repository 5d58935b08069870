"""Typed objects from a composed configuration. Only this package imports OmegaConf."""
