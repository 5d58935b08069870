"""Training on images and their captions."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import torch
from torch import Tensor, nn

from dpt.data.base import Dataset
from dpt.losses.contrastive import contrastive_loss
from dpt.metrics.image import RetrievalMetrics
from dpt.nn.heads.image import ClipHead
from dpt.objectives.base import Objective
from dpt.types.outputs import ClipOutput, HeadOutput
from dpt.types.samples import Batch, Sample
from dpt.validation import NonNegative, Plain, PlainMapping


class ClipObjective(Objective):
    """Trains image embeddings (B, E) against the captions' embeddings (Radford et al. 2021).

    Images with equal captions, as far as the text encoder reads them, are not negatives of one
    another, and each of their captions counts as the right one in retrieval. Images without a
    caption count in zero-shot accuracy alone.

    Args:
        class_names: names of the data's image-level classes, for zero-shot accuracy.
        text_length: of the head, see :class:`dpt.nn.heads.image.ClipHeadConfig`.
    """

    head = "clip"
    target = "caption"
    scored_by = "class_id"
    dense = False
    metrics: RetrievalMetrics

    def __init__(
        self, *, class_names: Sequence[str] = (), text_length: int = 128, weight: NonNegative = 1.0
    ) -> None:
        super().__init__(weight=weight)
        self.class_names, self.text_length = tuple(class_names), text_length
        self.metrics = RetrievalMetrics()

    @classmethod
    def from_data(cls, data: Dataset, settings: PlainMapping) -> Plain:
        return {"class_names": data.class_id_names}

    def add_outputs(self, head: nn.Module, output: HeadOutput, batch: Batch) -> ClipOutput:
        assert isinstance(head, ClipHead)
        captions, images = batch["caption"], output.tensor
        ids = caption_ids(captions, head.length).to(images.device)
        clip_output = ClipOutput(images, text=head.scaled_text(captions), ids=ids)
        if self.class_names and not head.training:
            clip_output.classes = images @ head.embed_classes(self.class_names).mT
        return clip_output

    def remarks(self, samples: Sequence[Sample]) -> Iterator[str]:
        texts = [sample.get("caption", "").encode() for sample in samples]
        key = f"task.objectives.clip.text_length={self.text_length}"
        num_long = sum(len(text) > self.text_length for text in texts)
        if num_long:
            yield f"{key}: {num_long} of {len(texts)} captions read are longer and are cut"
        if len(texts) > 1 and len({text[: self.text_length] for text in texts}) == 1:
            yield f"{key}: all {len(texts)} captions read are equal: nothing can be learned"

    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        assert isinstance(output, ClipOutput)
        loss = contrastive_loss(output.tensor, output.text, output.ids)
        return {"loss_clip": self.weight * loss}

    def update(self, output: HeadOutput, batch: Batch) -> None:
        assert isinstance(output, ClipOutput)
        has_caption = output.ids >= 0
        self.metrics.update(
            output.tensor[has_caption], output.text[has_caption], output.ids[has_caption]
        )
        if output.classes is not None and "class_id" in batch:
            self.metrics.update_classes(output.classes, batch["class_id"])


def caption_ids(captions: Sequence[str], length: int) -> Tensor:
    """Returns int64 (B,), equal for captions with the same first ``length`` bytes.

    The ids are the same in every process; -1 stands for an empty caption.
    """
    digests = [blake2b(text.encode()[:length], digest_size=8).digest() for text in captions]
    numbers = [int.from_bytes(digest, "big") >> 1 for digest in digests]  # at least 0
    return torch.tensor([n if text else -1 for n, text in zip(numbers, captions, strict=True)])
