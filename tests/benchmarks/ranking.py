"""``python tests/benchmarks/ranking.py RUN``: whether ``dpt data rank`` finds the images of val on
which the model of a run is wrong: Spearman's correlation of scores and errors,
of classes or metric depth.
"""

import sys
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

import dpt
from dpt.config.schema import DataConfig
from dpt.files import read_yaml
from dpt.predict.ranking import Ranker


def errors_of(prediction, sample):
    """Returns what is wrong with a prediction, by the name of the measure."""
    if prediction.labels is not None:
        labels, predicted = sample["labels"], prediction.labels
        known = labels != 255
        pairs = [(predicted == k, (labels == k) & known) for k in np.unique(labels[known])]
        ious = [(one & other).sum() / ((one & known) | other).sum() for one, other in pairs]
        return {"wrong pixels": (predicted != labels)[known].mean(), "1 - mIoU": 1 - np.mean(ious)}
    depth, predicted = sample["depth"][sample["valid"]], prediction.depth[sample["valid"]]
    aligned = predicted * np.median(depth) / np.median(predicted)
    pairs = {"abs_rel": predicted, "abs_rel, aligned": aligned}
    return {name: np.mean(np.abs(values - depth) / depth) for name, values in pairs.items()}


def main(run):
    data = DataConfig.read(read_yaml(run / "config.yaml")["data"]).make("val")
    model = dpt.DPT.from_pretrained(run)
    predictor, ranker = dpt.Predictor(model), Ranker(model)
    scores, errors = [], []
    for index in range(len(data)):
        path = data.files(index).image
        scores += ranker.scores(path)
        errors.append(errors_of(predictor(path), data[index]))
    for name in errors[0]:
        correlation = spearmanr(scores, [row[name] for row in errors]).statistic
        print(f"{name}: {correlation:.3f} ({len(scores)} images)")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
