"""Tables and lists of a data set name no file outside of its folder, however they write it."""

import depth_trees as trees
import numpy as np
import pytest
import scipy.io
from coco_files import save

from dpt.data import CocoDataset, DataError, FolderDataset
from dpt.data.datasets.filelist import FileListDataset, KittiDataset
from dpt.data.datasets.imagefolder import ImageTableDataset
from dpt.data.datasets.indoor import SunRgbdDataset
from dpt.data.datasets.rendered import HypersimDataset


def image_table(root, name):
    (root / "labels_train.csv").write_text(f"image,value\n{name},1.0\n")
    return ImageTableDataset(root=root, split="train")


def folder_table(root, name):
    (root / "list.csv").write_text(f"split,image,mask\ntrain,{name},{name}\n")
    lists = {"train": "list.csv", "val": "list.csv"}
    return FolderDataset(root=root, split="train", labels=".", num_classes=3, split_files=lists)


def pairs(kind):
    def listed(root, name):
        (root / "list.txt").write_text(f"inside.png {name}\n")
        lists = {"train": "list.txt", "val": "list.txt"}
        return kind(root=root, split="train", images=".", max_depth=9.0, split_files=lists)

    return listed


def sun_rgbd(root, name):
    folder = root / "SUNRGBDtoolbox/traintestSUNRGBD"
    folder.mkdir(parents=True)
    cells = np.array([[f"/n/SUNRGBD/../{name}"]], dtype=object)
    scipy.io.savemat(folder / "allsplit.mat", {"alltrain": cells})
    return SunRgbdDataset(root=root, split="train")


def hypersim(root, name):
    trees.hypersim(root)
    table = root / "metadata_images_split_scene_v1.csv"
    table.write_text(table.read_text().replace("cam_00", f"cam_00/{name}"))
    return HypersimDataset(root=root, split="train")


@pytest.fixture
def places(tmp_path):
    """The folder of the data set; the file ``secret.png`` lies beside it."""
    root = tmp_path / "root"
    save(tmp_path / "secret.png", np.zeros((8, 8, 3), np.uint8))
    save(root / "inside.png", np.zeros((8, 8, 3), np.uint8))
    return root


@pytest.mark.parametrize(
    "make",
    [image_table, folder_table, pairs(FileListDataset), pairs(KittiDataset), sun_rgbd, hypersim],
    ids=["image table", "folder table", "list", "kitti", "sun rgb-d", "hypersim"],
)
@pytest.mark.parametrize("way", ["../secret.png", "a/../../secret.png", "/../secret.png"])
def test_names_that_lead_outside_are_refused(places, make, way):
    with pytest.raises(DataError, match=r"secret\.png.*(not below|correct it)"):
        make(places, way)


def test_folders_that_the_user_names_may_lie_elsewhere(places):
    places.joinpath("labels_train.csv").write_text("image,value\nsecret.png,1.0\n")
    data = ImageTableDataset(root=places, split="train", images=str(places.parent))
    assert data.name(0).endswith("/secret.png")
    places.joinpath("labels_train.csv").write_text("image,value\n../secret.png,1.0\n")
    with pytest.raises(DataError, match=r"secret\.png is not below"):
        ImageTableDataset(root=places, split="train", images=str(places.parent))


def test_links_inside_are_followed(places):
    """Users link folders and files of other disks."""
    (places / "link.png").symlink_to("../secret.png")
    (places / "folder").symlink_to("..")
    for name in ("link.png", "folder/secret.png"):
        assert image_table(places, name)[0]["image"].shape == (8, 8, 3)


def test_masks_of_panoptic_files(places):
    (places / "p.json").write_text(
        '{"images": [{"id": 1, "file_name": "inside.png", "height": 8, "width": 8}], "categories":'
        '[{"id": 1, "name": "a"}], "annotations": [{"image_id": 1, "file_name": "../secret.png",'
        '"segments_info": []}]}'
    )
    options = {"images": ".", "annotations": "p.json"}
    with pytest.raises(DataError, match=r"p\.json: .*secret\.png is not below"):
        CocoDataset(root=places, split="train", **options)
