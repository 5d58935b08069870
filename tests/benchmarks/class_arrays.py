"""Class ids for rules of scoring: absent classes, pixels of no class, images without labels."""

import numpy as np
import torch

from dpt.metrics import confusion_matrix

K = 19
"""The number of classes; that of Cityscapes, whose script knows no other."""
CASES = ("all", "absent", "only_predicted", "only_labelled", "holes", "no_class", "wrong", "empty")


def class_arrays(case: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns prediction and labels (H, W) of three images, uint8; 255 is no class."""
    random = np.random.default_rng([50, 50, CASES.index(case)])
    images = []
    for index in range(3):
        labels = np.repeat(random.integers(0, K, (24, 8)), 4, axis=1).astype(np.uint8)
        guesses = random.integers(0, K, labels.shape)
        if case in ("absent", "only_predicted"):
            labels[labels % 5 == 2] = 1
        if case in ("absent", "only_labelled"):
            guesses[guesses % 5 == 2] = 1
        kept = random.random(labels.shape) < (0.0 if case == "wrong" else 0.7)
        if case == "only_labelled":
            kept &= labels % 5 != 2
        prediction = np.where(kept, labels, guesses).astype(np.uint8)
        if case == "wrong":
            prediction[prediction == labels] = (labels[prediction == labels] + 1) % K
        if case in ("holes", "no_class"):
            labels[random.random(labels.shape) < 0.2] = 255
        if case == "no_class":
            prediction[random.random(labels.shape) < 0.1] = 255
        if case == "empty" or (case == "holes" and index == 1):
            labels[:] = 255
        images.append((prediction, labels))
    return images


def class_counts(case: str) -> np.ndarray:
    """Returns the confusion matrix (K, K + 1) of the three images."""
    counts = torch.zeros(K, K + 1)
    for prediction, labels in class_arrays(case):
        counts += confusion_matrix(torch.from_numpy(prediction), torch.from_numpy(labels), K)
    return counts.double().numpy()
