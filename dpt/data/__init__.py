"""Data sets, transforms, sampling and loading: from files to batches."""

from dpt.data.base import Augmented, Dataset, Files, Transform
from dpt.data.datasets.files import FileDataset, UnlabelledDataset
from dpt.data.datasets.folder import CocoDataset, FolderDataset
from dpt.data.datasets.imagefolder import ImageFolderDataset, ImageTableDataset
from dpt.data.formats.io import read_depth, read_image, read_labels
from dpt.data.loading import EpochSampler, collate_eval, collate_train, make_loader, read_in_order
from dpt.data.mix import MixDataset
from dpt.data.scenes.dataset import ScenesDataset
from dpt.data.shards.packed import PackedDataset
from dpt.data.transforms import EvalTransform, TrainTransform
from dpt.files import DataError
