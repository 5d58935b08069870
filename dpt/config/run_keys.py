"""The keys of a training run's configuration (``conf/train.yaml``) and their types."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import pydantic
from pydantic import Field

from dpt.validation import Count, Plain

Seed = Annotated[int, Field(ge=0, lt=2**32)]
Named = dict[str, Plain | None]


@dataclass(frozen=True)
class RunKeys:
    """The keys of a training run's configuration; mappings are checked where they are used."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = {"extra": "forbid"}

    task: Plain
    data: Plain
    model: Plain
    augment: Plain
    optim: Plain
    schedule: Plain
    trainer: Plain
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
    paths: Plain = field(default_factory=dict)
    find: Plain = field(default_factory=dict)
