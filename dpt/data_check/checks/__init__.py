"""The checks. To add one, write a function with the decorator ``check`` in one of the modules."""

from dpt.data_check.checks import depth, files, labels, photos

__all__ = ["depth", "files", "labels", "photos"]
