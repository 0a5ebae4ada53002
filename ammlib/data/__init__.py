"""Names to arrays (datasets), where their bytes come from (sources), and batches on the training device (batches)."""

from ammlib.data.batches import CROPS, Batches, eval_batches, noisy_labels, subset, unit, validation_split
from ammlib.data.datasets import DATASETS, Dataset, data_root, load_data
from ammlib.data.folders import FolderBatches, ImageFiles, image_folder, make_batches
from ammlib.data.sources import DataError, fetch

__all__ = [
    "CROPS",
    "DATASETS",
    "Batches",
    "DataError",
    "Dataset",
    "FolderBatches",
    "ImageFiles",
    "data_root",
    "eval_batches",
    "fetch",
    "image_folder",
    "load_data",
    "make_batches",
    "noisy_labels",
    "subset",
    "unit",
    "validation_split",
]
