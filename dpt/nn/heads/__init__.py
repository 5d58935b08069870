"""Heads, each with the class of its settings."""
