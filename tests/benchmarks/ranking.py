"""``python tests/benchmarks/ranking.py RUN``: whether ``dpt data rank`` finds the images of val on
which the model of a run is wrong: Spearman's correlation of scores and errors.
"""

import sys
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

import dpt
from dpt.config.data import make_dataset
from dpt.files import read_yaml
from dpt.predict.ranking import Ranker


def main(run):
    data = make_dataset(read_yaml(run / "config.yaml")["data"], "val")
    model = dpt.DPT.from_pretrained(run)
    predictor, ranker = dpt.Predictor(model), Ranker(model)
    scores, errors, losses = [], [], []
    for index in range(len(data)):
        path, labels = data.files(index).image, data[index]["labels"]
        known, predicted = labels != 255, predictor(path).labels
        pairs = [(predicted == k, (labels == k) & known) for k in np.unique(labels[known])]
        ious = [(one & other).sum() / ((one & known) | other).sum() for one, other in pairs]
        scores += ranker.scores(path)
        errors.append((predicted != labels)[known].mean())
        losses.append(1 - np.mean(ious))
    for name, values in (("wrong pixels", errors), ("1 - mIoU", losses)):
        print(f"{name}: {spearmanr(scores, values).statistic:.3f} ({len(scores)} images)")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
