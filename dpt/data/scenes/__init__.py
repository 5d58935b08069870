"""Procedural scenes: images with exact depth and labels."""
