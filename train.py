"""Trains a model: ``python train.py --help``."""

from dpt.cli import main

if __name__ == "__main__":
    main("train")
