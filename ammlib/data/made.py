"""Data sets that are made here and need no file: scikit-learn's digits, the same enlarged, and the toy of Fig. 1."""

import numpy as np
import torch
import torch.nn.functional as F

from ammlib.data.batches import validation_split
from ammlib.data.sources import KEYS, Arrays


def digits() -> Arrays:
    """scikit-learn's 1,797 real digits of 8 x 8: 1,437 for training and 360 for test; needs no files."""
    from sklearn.datasets import load_digits  # here because its import is slow

    images, labels = load_digits(return_X_y=True)
    x = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    train, test = (index.numpy() for index in validation_split(len(x), seed=0, n_val=360))
    return dict(zip(KEYS, (x[train], labels[train], x[test], labels[test]), strict=True))


def digits32() -> Arrays:
    """The digits as 32 x 32 x 3 (bilinear), for small runs of what is made for CIFAR."""
    arrays = digits()
    for key in ("x_train", "x_test"):
        x = torch.from_numpy(arrays[key]).permute(0, 3, 1, 2).float()
        x = F.interpolate(x, size=(32, 32), mode="bilinear").round().to(torch.uint8)
        arrays[key] = x.permute(0, 2, 3, 1).expand(-1, -1, -1, 3).numpy()
    return arrays


def toy() -> Arrays:
    """Section 3.3.3: points, uniform in two thin rectangles, 200 a class for training and as many for test."""
    random = np.random.default_rng(0)
    low, high = np.array([[-1.01, -4.0], [0.99, -2.0]]), np.array([[-0.99, 2.0], [1.01, 4.0]])
    labels = np.repeat([0, 1], 200)
    train, test = (random.uniform(low[labels], high[labels]).astype(np.float32)[:, None, None] for _ in range(2))
    return dict(zip(KEYS, (train, labels, test, labels), strict=True))
