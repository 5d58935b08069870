"""The public model: built by name, saved to a folder, loaded from one."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

from dpt.model_config import HeadSettings, ModelConfig, make_config
from dpt.nn.network import Network, merged_state, optimized
from dpt.types.preprocessing import Calibration, Preprocessing
from dpt.validation import validate
from dpt.weights.formats import Native, read


class DPT(Network):
    """A Dense Prediction Transformer with its configuration.

    Args:
        config: typed settings from which an equal model can be built; saved with the weights.
        network: the modules, if they were built already; None builds them with random weights.

    Attributes:
        preprocessing: how images become inputs.
        calibration: how predicted depth becomes metres for :class:`dpt.Predictor`; the model's own
            output does not change. None if the model was not calibrated.
    """

    def __init__(self, config: ModelConfig, network: Network | None = None) -> None:
        config = deepcopy(config)
        network = config.build() if network is None else network
        super().__init__(
            encoder=network.encoder,
            decoder=network.decoder,
            heads=network.heads,
            decoders=network.decoders,
        )
        self.config = config
        self.calibration = config.calibration

    @property
    def preprocessing(self) -> Preprocessing:
        return self.config.preprocessing

    @preprocessing.setter
    def preprocessing(self, preprocessing: Preprocessing) -> None:
        self.config.preprocessing = validate(Preprocessing, preprocessing, "preprocessing")

    @property
    def calibration(self) -> Calibration | None:
        return self.config.calibration

    @calibration.setter
    def calibration(self, calibration: Calibration | None) -> None:
        calibration = validate(Calibration | None, calibration, "calibration")
        depths = [spec for spec in self.outputs.values() if spec.kind == "depth"]
        if calibration is not None and not depths:
            raise ValueError(f"a calibration is for depth, and this model has {list(self.heads)}")
        if calibration is not None:
            space = "inverse_depth" if depths[0].is_inverse_depth else "depth"
            if calibration.space != space:
                fault = f"calibration.space={calibration.space}: this model predicts {space}"
                raise ValueError(f"{fault}: calibrate it anew (dpt calibrate)")
        self.config.calibration = calibration

    @classmethod
    def from_pretrained(cls, path: str | Path, *, revision: str | None = None) -> DPT:
        """Loads a model of any known format, in evaluation mode. No code in a file is executed.

        Args:
            path: a folder, a file, or ``user/name`` on the Hugging Face hub.
            revision: branch, tag or commit on the hub.

        Raises:
            ValueError: the file is missing or damaged, its format is unknown, or it does not fit
                its own configuration: each missing, unexpected or unfit tensor is listed.
        """
        checkpoint = read(path, revision=revision)
        return cls(checkpoint.config, checkpoint.build()).eval()

    def optimize_for_inference(self, *, compiled: bool = True) -> DPT:
        """Returns a copy that predicts the same, faster, and cannot be trained or saved.

        BN after a convolution is fused, auxiliary heads and projections are removed, parameters
        frozen, convolutions channels-last. With ``compiled``, the first call also tries
        torch.compile and keeps the faster form: this takes half a minute, needs a C++ compiler
        (CPU) or Triton (GPU), and holds the weights twice.
        """
        return optimized(self, compiled=compiled)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes ``config.json``, ``model.safetensors`` and a model card into ``folder``.

        The card is ``README.md``. It states outputs, units, classes and preprocessing. One that a
        person wrote or edited is kept, with a warning.

        Raises:
            ValueError: this is an optimised copy, or it no longer fits its configuration.
        """
        if self.predicts_only:
            raise ValueError("an optimised copy only predicts: save the model it was made of")
        state, folder = merged_state(self.state_dict()), Path(folder).expanduser()
        Native().write(self.config.to_dict(), state, folder)


def create_model(name: str, *, heads: HeadSettings, **overrides: Any) -> DPT:
    """Builds a model by name with random weights, in training mode, for images of any size.

    Args:
        name: one of :func:`dpt.list_models`.
        heads: for example ``{"depth": {"kind": "metric", "max_depth": 10.0},
            "segmentation": {"num_classes": 150}}``; ``dpt.nn.HEADS`` holds all names.
        **overrides: see :func:`dpt.model_config.model_dict`.
    """
    return DPT(make_config(name, heads=heads, **overrides))
