"""The life of a model from Python: the functions that the commands call.

They take the words of the command line, raise ``ValueError`` for a mistake, and return a
:class:`Run`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, Unpack

import dpt
from dpt.config import schema
from dpt.config.compose import RUN_DIR, compose
from dpt.config.overrides import as_text, split_config_dir
from dpt.config.resumed_config import data_of_evaluation, resumed_config, run_in, run_to_resume
from dpt.config.run_folder import held, refuse_used, save_config
from dpt.plugins import load_plugins
from dpt.process import is_first_rank
from dpt.validation import PlainMapping

if TYPE_CHECKING:
    from dpt.data_check import Finding
    from dpt.exporting.export import Export, Options


C = TypeVar("C", bound=schema.Config)


@dataclass(frozen=True)
class Run:
    """A training run or an evaluation that has ended.

    Attributes:
        folder: what it has written.
        scores: such as ``val/rmse``, ``val/miou``.
        config: its configuration, as in ``config.yaml``.
        headlines: of an evaluation: names of the first score of each output.
        lower_is_better: of an evaluation: names of scores.
    """

    folder: Path
    scores: Mapping[str, float] = field(default_factory=dict)
    config: PlainMapping = field(default_factory=dict)
    headlines: tuple[str, ...] = ()
    lower_is_better: frozenset[str] = frozenset()

    @property
    def checkpoint(self) -> str:
        """The folder of a training run, or the checkpoint that was evaluated."""
        return str(self.config.get("checkpoint") or self.folder)

    @property
    def model(self) -> dpt.DPT:
        """The model with the best weights of a training run, or the one that was evaluated.

        Raises:
            ValueError: there is none, as in an evaluation of predictions on disk.
        """
        return dpt.DPT.from_pretrained(self.checkpoint)


def train(*overrides: str) -> Run:
    """Trains a model; the same as ``dpt train``.

    Args:
        *overrides: such as ``"task=depth"``, ``"data=folder"``, ``"steps=600"``; with
            ``"resume=DIR"`` a run continues.

    Raises:
        ValueError: a mistake in the configuration or in the data, or the run has diverged.
        SystemExit: a signal has stopped the run, which was validated and saved before.
    """
    with started("train", schema.RunConfig, overrides) as config:
        from dpt.training.fit import fit

        scores = fit(config)
    return Run(config.folder, scores, run_in(config.folder))  # with the values that were used


def evaluate(source: Run | Path | str = "checkpoint=null", *overrides: str) -> Run:
    """Scores a model, or predictions on disk; the same as ``dpt evaluate``.

    Args:
        source: a run, a checkpoint of any known format, or ``"predictions=DIR"``.
        *overrides: such as ``"data=nyuv2"``, ``"protocol=all"``. Without ``data=``, the data are
            those of the checkpoint's run.

    Raises:
        ValueError: a mistake, or a prediction that is not finite.
    """
    name = source.checkpoint if isinstance(source, Run) else str(source)
    arguments = [name, *overrides]
    if name[:1] != "-" and ("=" not in name or os.path.exists(name)):
        arguments[0] = f"checkpoint={as_text(name)}"
        others = [o for o in overrides if o.lstrip("+").startswith("checkpoint=")]
        if others:
            raise ValueError(f"two checkpoints, {name} and {others[0]}: leave one out")
    if not any(argument.startswith("data=") for argument in arguments):
        # the data of the run may have other keys than the default
        arguments = [f"++{a}" if a.startswith("data.") else a for a in arguments]
    with started("evaluate", schema.EvaluateConfig, arguments) as config:
        from dpt.evaluation.evaluate import evaluate as score

        scored = score(config)
    return Run(
        config.folder, scored.scores, config.values, scored.headlines, scored.lower_is_better
    )


def check(*overrides: str) -> list[Finding]:
    """Looks for faults in a data set; the same as ``dpt data check``, which writes a report.

    Args:
        *overrides: such as ``"data=folder"``, ``"data.root=DIR"``, ``"data.labels=masks"``.

    Returns:
        What was found, errors first.
    """
    with started("data check", schema.CheckConfig, overrides) as config:
        from dpt.data_check import check_data

        return check_data(config)


def find_lr(*overrides: str) -> Run:
    """Suggests a learning rate by a short training; the same as ``dpt find-lr``.

    Returns:
        As scores, ``optim.lr`` and, where it is set, ``optim.encoder_lr``.
    """
    with started("find-lr", schema.FindLrConfig, overrides) as config:
        from dpt.training.short_runs import find_lr as sweep

        rates = sweep(config)
    return Run(config.folder, rates, config.values)


def export(
    source: Run | Path | str | dpt.DPT, path: Path | str, **options: Unpack[Options]
) -> Export:
    """Writes a model as one file for other programs, and compares the file with it.

    Args:
        source: a run, a checkpoint of any known format, or a model.
        path: ends in ``.onnx``, ``.xml`` (OpenVINO), ``.pt2`` (torch.export, or AOTInductor)
            or ``.tflite`` (LiteRT).
        **options: ``size``, ``tasks``, ``with_preprocessing``, ``opset``, ``to`` and ``half``, see
            :func:`dpt.exporting.export.export`.

    Raises:
        ValueError: the model cannot be exported, or the file differs from it.
    """
    from dpt.exporting.export import export as write
    from dpt.exporting.targets import target_of

    target = Path(path)
    target_of(target, options.get("to"))  # before a large model is read
    model = source.model if isinstance(source, Run) else source
    if not isinstance(model, dpt.DPT):
        model = dpt.DPT.from_pretrained(model)
    return write(model, target, **options)


@contextmanager
def started(command: str, kind: type[C], overrides: Sequence[str]) -> Iterator[C]:
    """Yields the configuration of a command, and holds the folder of its run in the block."""
    load_plugins()
    folder = run_to_resume(command, overrides)
    if folder is not None:
        _, changes = split_config_dir(overrides)  # the run has used the user's own groups already
        with held(folder):
            yield kind.read(resumed_config(folder, changes))
        return
    values = compose(command, overrides).values()
    if command == "evaluate":
        values["data"] = data_of_evaluation(values)
    config = kind.read(values)
    with starting(command, config):
        yield config


@contextmanager
def starting(command: str, config: schema.Config) -> Iterator[None]:
    """Holds the folder of a new run in the block, after a check that it is free."""
    with held(config.folder):
        if is_first_rank():
            os.environ[RUN_DIR] = str(config.folder)  # for the ranks that Lightning starts
            is_training = command == "train"
            of_run = config if is_training and isinstance(config, schema.RunConfig) else None
            if of_run is None or not (of_run.overwrite or of_run.resume):
                refuse_used(config.folder, is_training=is_training)
                save_config(config.values, config.folder)  # else RunState saves it, after checks
        try:
            yield
        finally:
            os.environ.pop(RUN_DIR, None)
