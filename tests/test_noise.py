"""Facts about systems that train with noise: DisturbLabel, DLSVM's noise on images, DropConnect."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from trainings import lenet, mlp, start, tiny

from ammlib.methods.method import Batch, Task
from ammlib.methods.noise import DropConnect, MaskedLinear, disturbed
from ammlib.methods.svm import DLSVM

pytestmark = pytest.mark.usefixtures("own_folders")


# ---- labels


def test_labels_are_disturbed_anew_in_each_epoch_and_the_training_error_counts_the_true_ones():
    training = start(tiny("disturblabel", alpha=0.5))
    disturb, drawn = training.method.disturb, torch.zeros(2, 60).long()

    def noted(batch):
        changed = disturb(batch)
        drawn[training.epoch, batch.rows] = changed.y
        return changed

    training.method.disturb = noted
    training.run(progress=False)
    wrong = drawn != training.data.y_train
    assert (wrong.float().mean(1) > 0.3).all() and (drawn[0] != drawn[1]).float().mean() > 0.3


def test_the_training_error_counts_the_true_labels():
    training = start(tiny("disturblabel", alpha=1.0))
    x, y = next(training.batches.epoch(0))
    training.method.disturb = lambda batch: batch._replace(y=deepcopy(training.model)(x).argmax(1))  # all "correct"
    wrong = int((deepcopy(training.model)(x).argmax(1) != y).sum())
    training.take_step(x, y)
    assert training.sums["wrong"] == wrong > 10


def test_disturbed_labels_have_the_stated_probabilities():
    torch.manual_seed(0)
    y = disturbed(torch.full((100_000,), 3), alpha=0.2, classes=10)
    shares = torch.bincount(y, minlength=10) / len(y)
    expected = torch.full((10,), 0.02)
    expected[3] = 1 - 0.2 * 0.9
    torch.testing.assert_close(shares, expected, rtol=0, atol=3e-3)


# ---- images


def test_input_noise_falls_linearly_to_none():
    system, x, y = DLSVM(noise=0.5), torch.zeros(500, 1, 8, 8), torch.zeros(500).long()
    system.begin(mlp(), Task(500, 10, (1, 8, 8), steps=8))
    torch.manual_seed(0)
    found = [float(system.disturb(Batch(x, y, step=step)).x.std()) for step in (0, 2, 4, 6, 8)]
    assert found == pytest.approx([0.5, 0.375, 0.25, 0.125, 0.0], rel=0.03)


# ---- weights


@pytest.mark.parametrize("bias", [True, False])
def test_dropconnect_in_eval_mode_is_the_mean_over_masks(bias):
    torch.manual_seed(0)
    layer, v = nn.Linear(300, 6, bias=bias), torch.rand(2, 300)
    masked = MaskedLinear(layer, keep=0.5, mask="sample").eval()
    expected = masked(v)
    masked.train()
    drawn = torch.stack([masked(v.repeat(500, 1)).view(500, 2, 6).mean(0) for _ in range(40)]).mean(0)
    mean_net = F.relu(0.5 * layer(v))
    assert (drawn - expected).abs().max() < 0.01 < (drawn - mean_net).abs().max()
    masked.mask = "gaussian"
    gaussian = torch.stack([masked(v.repeat(500, 1)).view(500, 2, 6).mean(0) for _ in range(40)]).mean(0)
    torch.testing.assert_close(gaussian, expected, rtol=0, atol=0.01)


def test_dropconnect_masks_hidden_rectified_layers_only():
    kinds = [type(layer).__name__ for layer in DropConnect().adapt(lenet())]
    torch.manual_seed(0)
    assert kinds.count("MaskedLinear") == 1 and kinds[-1] == "Linear"
    masks = {mask: MaskedLinear(nn.Linear(9, 7), 0.5, mask) for mask in ("sample", "batch")}
    v = torch.ones(50, 9)
    assert masks["batch"](v).std(0).max() < 1e-6 and masks["sample"](v).std(0).max() > 0.1
