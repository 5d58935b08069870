"""A model as one file for other programs: ONNX, OpenVINO, or torch.export's ``.pt2``."""
