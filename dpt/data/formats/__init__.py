"""File formats: images, depth maps, labels, video."""
