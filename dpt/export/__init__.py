"""A model as one file for other programs: ONNX, or torch.export's ``.pt2``."""

from dpt.export.export import Export, export

__all__ = ["Export", "export"]
