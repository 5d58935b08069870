"""Scoring of models and of predictions on disk by published protocols."""
