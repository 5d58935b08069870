"""Procedural scenes: photos with exact depth and labels."""
