"""The tokens of a frozen encoder on disk, so that each image passes it once."""

from hashlib import blake2b
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from dpt.files import DataError, write_bytes
from dpt.process import log
from dpt.types.outputs import Tokens
from dpt.validation import PlainMapping


class TokenCache:
    """Computes the tokens (B, T, D) of images (B, C, H, W), or reads them from files.

    Images are the same if all their pixels are, after normalisation. Tokens of other weights, other
    settings or another precision are other files.

    Args:
        encoder: whose weights do not change.
        settings: of the encoder: some, such as the blocks that are read, change no weight.
        folder: of the files, safetensors with the tokens of one image each.
        capacity: number of files that are written: random augmentation would fill the disk.
    """

    def __init__(
        self, encoder: nn.Module, settings: PlainMapping, folder: Path, capacity: int
    ) -> None:
        self.compute, self.folder, self.left = encoder.forward, folder, capacity
        digest = blake2b(repr(sorted(settings.items())).encode(), digest_size=16)
        for name, tensor in encoder.state_dict().items():
            digest.update(name.encode() + _bytes(tensor))
        self.weights = digest.hexdigest()

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tokens:
        device = images.device.type
        precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else ""
        start = f"{self.weights} {precision} {images.dtype} {[*images.shape[1:]]}".encode()
        digests = [blake2b(start + _bytes(image), digest_size=16) for image in images]
        paths = [self.folder / f"{digest.hexdigest()}.safetensors" for digest in digests]
        found = {path: _read(path, str(images.device)) for path in paths if path.is_file()}
        new = [index for index, path in enumerate(paths) if path not in found]
        if new:
            levels, grids = self.compute(images[new])
            for row, index in enumerate(new):
                tokens = {str(k): level[row].contiguous() for k, level in enumerate(levels)}
                found[paths[index]] = tokens | {"grids": torch.tensor(grids)}
                self._store(paths[index], found[paths[index]])
        grids = found[paths[0]]["grids"].tolist()
        names = [str(k) for k in range(len(grids))]
        levels = [torch.stack([found[path][name] for path in paths]) for name in names]
        return Tokens(levels, [(h, w) for h, w in grids])

    def _store(self, path: Path, tokens: dict[str, Tensor]) -> None:
        self.left -= 1
        if self.left >= 0:
            write_bytes(path, save({name: tensor.cpu() for name, tensor in tokens.items()}))
        elif self.left == -1:
            remedy = "augment=none augment.hflip=0 shows the encoder the same images again"
            log.warning("callbacks.freeze.cache: images are new in each step: %s", remedy)


def _read(path: Path, device: str) -> dict[str, Tensor]:
    try:
        return load_file(path, device)
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: is damaged ({error}): delete it") from None


def _bytes(tensor: Tensor) -> bytes:
    """Returns the values of a tensor of any dtype."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
