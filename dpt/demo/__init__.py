"""A page in the browser: drop a photo, see its depth and segmentation. Needs the extra ``demo``."""
