"""Facts about `margins`: data in any usual form have the same margins, and the result is told in several ways."""

import json

import numpy as np
import pytest
import torch
from conftest import make_net
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from ammlib import deepfool, margins

X = torch.rand(23, 1, 4, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(23) % 5
PARTS = [(X[i : i + 10], Y[i : i + 10]) for i in (0, 10, 20)]


def net(dtype=torch.float32):
    return make_net(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 5)), dtype=dtype)


class Samples(Dataset):
    """Single samples in some form."""

    def __init__(self, form):
        self.form = form

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return self.form(X[i], int(Y[i]))


class Stream(IterableDataset):
    """Of unknown length."""

    def __iter__(self):
        return zip(X, Y, strict=True)


def unwritable(values):
    array = values.numpy().copy()
    array.setflags(write=False)
    return array


FORMS = {
    "pair": lambda: (X, Y),
    "pair in a list": lambda: [X, Y],
    "pair, labels as a column": lambda: (X, Y[:, None]),
    "vectors, labels as a column": lambda: (X.flatten(1), Y[:, None]),
    "numpy": lambda: (X.numpy(), Y.numpy()),
    "numpy, float64": lambda: (X.double().numpy(), Y.numpy().astype(np.int32)),
    "numpy, not to be written to": lambda: (unwritable(X), unwritable(Y)),
    "labels in a list": lambda: (X, Y.tolist()),
    "labels in a list of batches": lambda: [(x, y.tolist()) for x, y in PARTS],
    "numpy images, tensor labels": lambda: (X.double().numpy(), Y),
    "dataset": lambda: TensorDataset(X, Y),
    "dataset of dicts": lambda: Samples(lambda x, y: {"pixel_values": x, "labels": y}),
    "dataset of numpy arrays": lambda: Samples(lambda x, y: (x.numpy(), y)),
    "stream": lambda: Stream(),
    "loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=7),
    "list of pairs": lambda: PARTS,
    "list of lists": lambda: [[x, y] for x, y in PARTS],
    "list of numpy pairs": lambda: [(x.double().numpy(), y.numpy()) for x, y in PARTS],
    "two pairs": lambda: [(X[:10], Y[:10]), (X[10:], Y[10:])],
    "generator": lambda: (part for part in PARTS),
    "batches with more": lambda: [(x, y, y) for x, y in PARTS],
    "dicts": lambda: [{"labels": y, "pixel_values": x} for x, y in PARTS],
    "generator of numpy dicts": lambda: ({"pixel_values": x.double().numpy(), "labels": y.numpy()} for x, y in PARTS),
}
UNLABELLED = {
    "images": lambda: X,
    "numpy": lambda: X.double().numpy(),
    "vectors": lambda: X.flatten(1),
    "dataset": lambda: TensorDataset(X),
    "list": lambda: [x for x, _ in PARTS],
    "two batches": lambda: [X[:12], X[12:]],
    "two batches of vectors": lambda: [X[:12].flatten(1), X[12:].flatten(1)],
    "generator": lambda: (x for x, _ in PARTS),
    "dicts": lambda: [{"pixel_values": x} for x, _ in PARTS],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("error")
def test_margins_are_the_same_in_any_form(form):
    found, expected = margins(net(), FORMS[form](), progress=False), deepfool(net(), X)
    torch.testing.assert_close(found.norm, expected.norm, rtol=0, atol=1e-5)
    assert torch.equal(found.success, expected.success) and torch.equal(found.correct, expected.prediction == Y)


@pytest.mark.parametrize("labels", [Y, Y.numpy(), Y.tolist(), Y[:, None]])
def test_labels_may_stand_beside_the_images(labels):
    assert torch.equal(margins(net(), X, labels, progress=False).correct, deepfool(net(), X).prediction == Y)


@pytest.mark.parametrize("form", UNLABELLED)
def test_margins_need_no_labels_in_any_form(form):
    found = margins(net(), UNLABELLED[form](), progress=False)
    torch.testing.assert_close(found.norm, deepfool(net(), X).norm, rtol=0, atol=1e-5)
    assert found.correct is None


def test_numpy_arrays_may_be_views():
    flipped = X.numpy()[:, ..., ::-1]
    assert torch.equal(margins(net(), flipped, progress=False).norm, deepfool(net(), X.flip(-1)).norm)


def test_numpy_arrays_take_the_precision_of_the_model():
    for array in (X.numpy(), X.double().numpy()):
        assert margins(net(torch.float64), array, progress=False).norm.dtype == torch.float64
        assert margins(net(torch.float32), array, progress=False).norm.dtype == torch.float32


def test_a_pandas_table_is_an_array_whose_rows_are_samples():
    pandas = pytest.importorskip("pandas", reason="pip install -r requirements-ecosystem.txt")
    table = pandas.DataFrame(X.flatten(1).double().numpy()).assign(label=Y.numpy())
    part = table[table.label > 0]  # whose rows keep their numbers
    found = margins(net(), (part.drop(columns="label"), part.label), batch_size=7, progress=False)
    expected = deepfool(net(), X[Y > 0])
    torch.testing.assert_close(found.norm, expected.norm, rtol=0, atol=1e-5)
    assert torch.equal(found.correct, expected.prediction == Y[Y > 0])


@pytest.mark.parametrize("std", [(0.5, 0.2, 0.1), torch.tensor([0.5, 0.2, 0.1]), np.array([0.5, 0.2, 0.1])], ids=type)
@pytest.mark.filterwarnings("error")
def test_norms_in_units_of_the_standard_deviation_want_one_number_a_channel(std):
    net = make_net(lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 5)), dtype=torch.float32)
    x = torch.rand(6, 3, 4, 4)
    expected = (deepfool(net, x).delta / torch.tensor([0.5, 0.2, 0.1]).view(3, 1, 1)).flatten(1).norm(dim=1)
    torch.testing.assert_close(margins(net, x, std=std, progress=False).norm, expected)
    for numbers in ((0.5, 0.2), (0.5, 0.2, 0.1, 0.1)):
        with pytest.raises(ValueError, match=f"std has {len(numbers)} numbers, the data have 3 channels"):
            margins(net, x, std=numbers, progress=False)


def test_dicts_have_any_keys():
    data = [{"image": x, "class": y, "id": None} for x, y in PARTS]
    found = margins(net(), data, keys=("image", "class"), progress=False)
    assert torch.equal(found.correct, deepfool(net(), X).prediction == Y)


BYTES = (255 * X).byte()


@pytest.mark.parametrize(
    "data, options, error, message",
    [
        (
            [{"image": X, "label": Y}],
            {},
            ValueError,
            "no 'pixel_values' in the batch, which has image, label; give keys=",
        ),
        ([{"image": X, "y": Y}], dict(keys=("x", "y")), ValueError, "no 'x' in the batch, which has image, y"),
        ([{"image": X, "y": Y}], dict(keys=("image", "label")), ValueError, "no 'label' in the batch"),
        (BYTES, {}, TypeError, r"got torch.uint8; scale uint8 images to \[0, 1\] first"),
        (BYTES.numpy(), {}, TypeError, r"got torch.uint8; scale uint8 images to \[0, 1\] first"),
        ((BYTES.numpy(), Y.numpy()), {}, TypeError, "scale uint8 images"),
        (X.double(), {}, TypeError, "x is torch.float64, the model's weights are torch.float32"),
        ([], {}, ValueError, "there are no samples"),
        (iter(()), {}, ValueError, "there are no samples"),
        (X.numpy()[:0], {}, ValueError, "empty"),
        (DataLoader(TensorDataset(X[:0])), {}, ValueError, "there are no samples"),
        (X, dict(y=Y), TypeError, r"labels stand beside the images: margins\(model, x, labels\)"),
        (PARTS, dict(labels=Y), TypeError, "labels stand beside images; list is taken to hold its own"),
        ((X, Y), dict(labels=Y), TypeError, "labels stand beside images; tuple"),
        (X, dict(labels=Y + 1), ValueError, "labels must lie in 0..4, got 1..5"),
        ((X, Y - 1), {}, ValueError, "labels must lie in 0..4, got -1..3"),
        ([(X, Y), X], {}, ValueError, "only some of the batches have labels"),
        ((X, None), {}, TypeError, r"a batch is images, \(images, labels\) or a dict, got NoneType"),
        ((X, Y.tolist()[:5]), {}, ValueError, r"as many labels as images are needed, got \[23, 5\]"),
        (3, {}, TypeError, "data must be images, .* got int"),
        ("images", {}, TypeError, "data must be images, .* got str"),
        ({"pixel_values": X}, {}, TypeError, "data must be images, .* got dict"),
        ((X.numpy(), Y.numpy()[:5]), {}, ValueError, r"as many labels as images are needed, got \[23, 5\]"),
        ([(X, Y[:5])], {}, ValueError, r"labels must have shape \(23,\), got \(5,\)"),
        ([(X, Y[:1])], {}, ValueError, r"labels must have shape \(23,\), got \(1,\)"),
        ((X, torch.eye(5)[Y]), {}, ValueError, r"labels must have shape \(23,\), got \(23, 5\)"),
    ],
)
def test_other_data_are_an_error_that_says_what_is_wrong(data, options, error, message):
    with pytest.raises(error, match=message):
        margins(net(), data, progress=False, **options)


# ---- the result


@pytest.mark.parametrize("labelled", [True, False])
def test_the_result_is_a_frame_with_a_row_for_each_sample(labelled):
    pytest.importorskip("pandas", reason="pip install -r requirements-ecosystem.txt")
    found = margins(net(), (X, Y) if labelled else X, progress=False)
    frame = found.frame()
    assert list(frame.columns) == ["norm", "success", "steps"] + ["correct"] * labelled and len(frame) == 23
    np.testing.assert_array_equal(frame["norm"], found.norm.double().numpy())
    assert frame["success"].dtype == bool and frame["steps"].dtype == "int64"


@pytest.mark.parametrize("labelled", [True, False])
def test_the_result_survives_json(labelled):
    found = margins(net(), (X, Y) if labelled else X, progress=False)
    told = json.loads(json.dumps(found.to_dict()))
    assert told.keys() == {"norm", "success", "steps"} | ({"correct"} if labelled else set())
    assert all(
        torch.equal(torch.tensor(told[name], dtype=getattr(found, name).dtype), getattr(found, name)) for name in told
    )


def test_a_notebook_shows_the_summary_as_a_table():
    found = margins(net(), (X, Y), progress=False)
    html, summary = found._repr_html_(), found.summary()
    assert all(f"<th>{name}</th>" in html and f"<td>{value:.4g}</td>" in html for name, value in summary.items())
    assert f"{found.norm.double().mean():.4g}" in html and summary["samples"] == 23
