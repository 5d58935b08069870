"""Functions on evaluation batches and on the outputs and scores of several heads."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from dpt.depthmath import canonical_prompts
from dpt.objectives.base import Objective
from dpt.types.outputs import HeadOutput, HeadPrediction, OutputSpec, prompt_focal
from dpt.types.samples import Batch


def same_size_groups(batch: Batch) -> Iterator[tuple[Tensor, list[int]]]:
    """Yields the images of an evaluation batch stacked by size, with their positions in the batch.

    Images that could not be read are left out.
    """
    images, blank = batch["image"], batch.get("blank", [])
    if isinstance(images, Tensor) and not blank:
        yield images, list(range(len(images)))
        return
    groups: dict[torch.Size, list[int]] = {}
    for i, image in enumerate(images):
        if i not in blank:
            groups.setdefault(image.shape, []).append(i)
    for positions in groups.values():
        yield torch.stack([images[i] for i in positions]), positions


def take(batch: Batch, positions: list[int]) -> Batch:
    """Returns the samples of an evaluation batch at ``positions``, without their images."""

    def pick(values: Tensor | list[object]) -> object:
        return values[positions] if isinstance(values, Tensor) else [values[i] for i in positions]

    skipped = ("image", "failed", "blank")  # the last two are of the whole batch
    entries = cast(dict[str, Tensor | list[object]], batch)
    return cast(Batch, {k: pick(values) for k, values in entries.items() if k not in skipped})


def prompts_of(batch: Batch, outputs: Mapping[str, OutputSpec]) -> Tensor | None:
    """Returns the sparse depth (B, H, W) of images of one size, as the model with these outputs
    takes it; None if the batch has none."""
    if "prompt" not in batch:
        return None
    return canonical_prompts(
        torch.stack(list(batch["prompt"])), batch.get("K"), prompt_focal(outputs)
    )


def evaluated(
    predictions: Mapping[str, HeadPrediction],
    heads: Mapping[str, nn.Module],
    objectives: Iterable[Objective],
    labels: Batch,
) -> dict[str, HeadOutput]:
    """Returns each head's output with what it computes from labels for its objective."""
    outputs = {name: HeadOutput(prediction) for name, prediction in predictions.items()}
    for objective in objectives:
        name = objective.head
        outputs[name] = objective.add_outputs(heads[name], outputs[name], labels)
    return outputs


def merged_scores(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns the scores of all heads, given by head; ValueError if two have one name."""
    merged: dict[str, float] = {}
    for head, values in scores.items():
        for name, value in values.items():
            if name in merged:
                raise ValueError(f"two heads, one is {head}, have a score {name}: leave one out")
            merged[name] = value
    return merged


def lower_is_better(objectives: Iterable[Objective]) -> set[str]:
    """Returns the names of the objectives' scores that are better if lower."""
    return {name for objective in objectives for name in objective.metrics.lower_is_better}


def nonfinite_names(outputs: Mapping[str, HeadOutput], labels: Batch) -> list[str]:
    """Returns the names of the images for which an output (B, ...) holds NaN or infinity."""
    values = [tensor for output in outputs.values() for tensor in output.tensors()]
    finite = [v[:, None].flatten(1).isfinite().all(dim=1) for v in values]  # also of no object
    flags = torch.stack(finite).all(dim=0).tolist()
    return [name for name, flag in zip(labels["name"], flags, strict=True) if not flag]


def nonfinite_summary(names: Sequence[str]) -> str:
    return f"predictions that are not finite (NaN or infinity): {len(names)}, such as {names[0]}"
