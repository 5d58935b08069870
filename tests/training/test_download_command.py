"""dpt data download, from a local server to a data set that can be trained on."""

import hashlib
import io
import zipfile

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image
from servers import served
from tiny import call

from dpt.commands.data_sets import DownloadSource
from dpt.files import config_dir
from dpt.validation import validate

OWN = """
defaults:
  - ade20k
  - _self_

download:
  page: http://example.org/home
  terms: for tests
  steps: log in and fetch the masks
  files:
    - url: {url}/photos.zip
      checksum: sha256:{checksum}
      unpack: {{ADEChallengeData2016: .}}
    - name: masks.zip
      unpack: {{ADEChallengeData2016: .}}
"""


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "png")
    return file.getvalue()


def archive(path, files):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in files.items():
            file.writestr(f"ADEChallengeData2016/{name}", content)


@pytest.fixture
def source(tmp_path):
    """A folder with photos.zip and masks.zip, and the address of its server."""
    folder = tmp_path / "source"
    folder.mkdir()
    photo, mask = np.zeros((8, 8, 3), np.uint8), np.full((8, 8), 2, np.uint8)
    mask[0] = 0
    splits = ("training", "validation")
    archive(folder / "photos.zip", {f"images/{s}/a.png": png(photo) for s in splits})
    archive(folder / "masks.zip", {f"annotations/{s}/a.png": png(mask) for s in splits})
    with served(folder) as address:
        yield folder, address


def test_fetches_what_is_free_and_lists_the_rest(source, tmp_path, capsys):
    folder, url = source
    checksum = hashlib.sha256((folder / "photos.zip").read_bytes()).hexdigest()
    (tmp_path / "mine/data").mkdir(parents=True)
    (tmp_path / "mine/data/own.yaml").write_text(OWN.format(url=url, checksum=checksum))
    root = tmp_path / "data"

    def download():
        options = ("data=own", f"data.root={root}", f"run_dir={tmp_path / 'run'}")
        call("data", "download", f"--config-dir={tmp_path / 'mine'}", *options)

    with pytest.raises(SystemExit):
        download()
    out, err = capsys.readouterr()
    assert "terms: for tests" in out
    assert "by hand: log in" in out
    (message,) = [line for line in err.splitlines() if line.startswith("error")]
    for name in ("masks.zip", "http://example.org/home", str(root)):
        assert name in message
    assert (root / "images/training/a.png").is_file()

    (root / "photos.zip").unlink()  # no longer needed, and gone from the server
    (folder / "photos.zip").unlink()
    (folder / "masks.zip").rename(root / "masks.zip")
    download()
    out, _ = capsys.readouterr()
    assert "train: 1 images" in out
    assert "val: 1 images" in out


def test_every_source_is_valid():
    """Types, addresses, checksums and names of the sources in conf/data."""
    configs = [OmegaConf.load(path) for path in (config_dir() / "data").glob("*.yaml")]
    downloads = [OmegaConf.to_container(config).get("download") for config in configs]
    sources = [
        validate(DownloadSource, download, "data.download") for download in downloads if download
    ]
    assert len(sources) >= 10
    for source in sources:
        assert source.page.startswith("http")
        assert source.files or source.steps
        for file in source.files:
            assert file.url.startswith("http") if file.url else (source.steps and file.file_name)
            algorithm, _, digest = (file.checksum or "").partition(":")
            assert not digest or len(digest) == 2 * hashlib.new(algorithm).digest_size
            assert not file.unpack or file.file_name.endswith((".zip", ".tar", ".tgz", ".tar.gz"))
