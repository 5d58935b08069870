"""The keys of a training run's configuration (``conf/train.yaml``) and their types."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import pydantic
from pydantic import Field

from dpt.validation import Count, Plain

Seed = Annotated[int, Field(ge=0, lt=2**32)]
Part = Plain
Named = dict[str, Part | None]


@dataclass(frozen=True)
class RunKeys:
    """The keys of a training run's configuration; what is in a ``Part`` is checked where used."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = {"extra": "forbid"}

    task: Part
    data: Part
    model: Part
    augment: Part
    optim: Part
    schedule: Part
    trainer: Part
    callbacks: Named
    logger: Named
    run_dir: str
    overrides: list[str]
    follows: dict[str, list[str]]
    seed: Seed
    steps: Count
    max_skipped_steps: Count
    resume: str | None
    overwrite: bool
    paths: Part = field(default_factory=dict)
    find: Part = field(default_factory=dict)
