"""Tiny models and photos, and ``dpt predict`` called in this process."""

from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from photos import save_photo, tiny


@pytest.fixture(scope="session")
def joint():
    return tiny({"depth": {"kind": "relative"}, "segmentation": {"num_classes": 5}})


@pytest.fixture(scope="session")
def metric():
    return tiny({"depth": {"kind": "metric", "max_depth": 10.0}}, seed=1)


@pytest.fixture(scope="session")
def checkpoints(joint, metric, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    joint.save_pretrained(folder / "joint")
    metric.save_pretrained(folder / "metric")
    return {"joint": folder / "joint", "metric": folder / "metric"}


@pytest.fixture
def photos(tmp_path) -> Path:
    """Six photos of three sizes in two folders, some of one name."""
    root = tmp_path / "photos"
    for i in range(6):
        size = ((40, 57), (40, 57), (33, 90))[i % 3]
        save_photo(root / "ab"[i % 2] / f"{i // 2}.png", *size, seed=i)
    return root


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def run(dpt_command, checkpoints, out):
    """run(*arguments): (exit code, stdout, stderr) of ``dpt predict`` with a model into ``out``."""

    def run(*arguments, model="metric", to=out):
        return dpt_command("predict", checkpoints.get(model, model), *arguments, "--out", to)

    return run


@pytest.fixture
def predict(run):
    """predict(*arguments): stdout of a run that succeeds."""

    def predict(*arguments, **options):
        code, said, err = run(*arguments, **options)
        assert (code, err) == (0, "")
        return said

    return predict


@pytest.fixture
def refusal(run):
    """refusal(*arguments): the one line of stderr by which a run ends."""

    def refusal(*arguments, **options):
        code, _, err = run(*arguments, **options)
        assert (code, err.count("\n"), err[:7]) == (1, 1, "error: "), err
        return err

    return refusal


@pytest.fixture
def s3(monkeypatch):
    """The file system of a local S3 server, also for other processes, with a bucket."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0)
    s3fs = pytest.importorskip("s3fs")
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    urlopen(Request(f"{address}/moto-api/reset", method="POST")).close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem()
    system.mkdir("bucket")
    yield system
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()
