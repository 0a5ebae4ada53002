"""Facts about all systems that the paper compares with: neutral settings, margins, resuming, what is refused."""

import pytest
import torch
from conftest import make_net
from torch import nn
from trainings import NETS, Keeping, mlp, result, start, tiny

from ammlib.margin.margins import margins
from ammlib.methods.layers import head_of
from ammlib.methods.method import Batch, Task
from ammlib.methods.registry import METHODS
from ammlib.training.prepare import prepare_data
from ammlib.training.train import train

SYSTEMS = list(METHODS)[list(METHODS).index("dlsvm") :]
pytestmark = pytest.mark.usefixtures("own_folders")


# ---- in its neutral setting a system is plain training


NEUTRAL = {
    "disturblabel": dict(alpha=0.0),
    "dropconnect": dict(keep=1.0),
    "bayes_by_backprop": dict(rho=-200.0, kl=0.0),
    "l_softmax": dict(m=1),
    "em_softmax": dict(m=0.0, lam=0.0, heads=1),
    "sokolic": dict(alpha=0.0),
    "jacobian": dict(lam=0.0),
    "mma": dict(clean=1.0),
}


def weights_of(training):
    """Of the layers, whatever wraps them: no deviations, and no bias of the last layer, which L-Softmax has not."""
    return [p.detach() for name, p in training.model.named_parameters() if "rho" not in name][:5]


@pytest.fixture
def double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("method", NEUTRAL)
def test_the_neutral_setting_is_plain_cross_entropy_step_for_step(method, double):
    decay = dict(weight_decay=0.0) if method == "bayes_by_backprop" else {}
    ours, plain = start(tiny(method, **NEUTRAL[method], **decay)), start(tiny("reference", **decay))
    if method == "l_softmax":
        head_of(plain.model).bias = None
    for x, y in plain.batches.epoch(0):
        for training in (ours, plain):
            training.take_step(x.double(), y)
        pairs = zip(weights_of(ours), weights_of(plain), strict=True)
        assert all(torch.allclose(a, b, rtol=0, atol=1e-14) for a, b in pairs)
        assert ours.sums["loss"] == pytest.approx(plain.sums["loss"], rel=1e-14)


# ---- what all of them keep


@pytest.mark.parametrize("method", SYSTEMS)
def test_in_eval_mode_a_trained_model_is_deterministic_and_has_margins(method):
    training = train(tiny(method), 0, progress=False)
    x = training.x_test[:20].float() / 255
    assert torch.equal(training.model(x), training.model(x))
    found = margins(training.model, x, progress=False)
    assert found.norm.isfinite().all() and found.success.float().mean() > 0.5


@pytest.mark.parametrize("method", SYSTEMS)
def test_a_run_that_was_killed_goes_on_bit_for_bit(method, tmp_path):
    recipe = tiny(method)
    data = prepare_data(recipe)
    whole = train(recipe, 0, data=data, progress=False)
    Keeping(recipe, 0, data, checkpoint=tmp_path / "last.pt").run(progress=False)
    torch.manual_seed(5)
    resumed = train(recipe, 0, data=data, checkpoint=tmp_path / "middle.pt", progress=False)
    assert result(resumed) == result(whole)
    for name, value in whole.method.state_dict().items():
        assert torch.equal(resumed.method.state_dict()[name], value)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("method", SYSTEMS)
def test_gradients_are_finite(method, net, seed):
    model = make_net(NETS[net], gain=(0.0, 1.0, 5.0)[seed], seed=seed)
    system = METHODS[method].make(**{k: v for k, v in METHODS[method].strength.items() if k != "name"})
    model = system.adapt(model).double()
    system.begin(model, Task(12, 10, (1, 8, 8), 10))
    x, y = torch.rand(12, 1, 8, 8, dtype=torch.float64), torch.arange(12) % 10
    x[0] = 0
    batch = system.disturb(Batch(x, y, torch.arange(12)))
    loss, logits = system.loss(model, batch)
    term = system.term(model, batch, logits)
    (loss if term is None else loss + term).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    system.after_step(model)
    assert all(p.isfinite().all() for p in model.parameters())


# ---- what is refused


IMPOSSIBLE = [
    ("dlsvm", dict(C=0.0), "C must be positive"),
    ("dlsvm", dict(noise=-1.0), "noise must not be negative"),
    ("crn", dict(iterations=0), "iterations must be positive"),
    ("disturblabel", dict(alpha=1.5), "alpha must be in 0 ... 1, got 1.5"),
    ("dropconnect", dict(keep=0.0), "keep must be above 0, and 1 at most, got 0"),
    ("dropconnect", dict(mask="dropout"), "unknown mask 'dropout'; choose from gaussian, sample, batch"),
    ("bayes_by_backprop", dict(pi=1.0), "pi must be between 0 and 1"),
    ("bayes_by_backprop", dict(kl=-1.0), "kl must not be negative"),
    ("l_softmax", dict(m=5), "m must be one of 1, 2, 3, 4, got 5"),
    ("l_softmax", dict(loss="hinge"), "l_softmax has a loss of its own, which takes no other: loss is 'hinge'"),
    ("em_softmax", dict(members=3), "members must be 1 or as many as the heads, 2; got 3"),
    ("em_softmax", dict(m=-1.0), "m and lam must not be negative"),
    ("sokolic", dict(alpha=-0.1), "must not be negative"),
    ("jacobian", dict(projections=0), "projections must be at least 1"),
    ("mma", dict(d_max=0.0), "d_max must be positive"),
    ("mma", dict(clean=2.0), "clean must be in 0 ... 1"),
    ("mma", dict(loss="none"), "mma has a loss of its own"),
    ("dropconnect", dict(loss="none"), "dropconnect adds no term to the loss"),
]


@pytest.mark.parametrize("method, changes, reason", IMPOSSIBLE)
def test_impossible_settings_are_refused_before_training(method, changes, reason):
    with pytest.raises(ValueError, match=reason):
        start(tiny(method, **changes))


@pytest.mark.parametrize("method", ["l_softmax", "em_softmax", "crn", "dropconnect"])
def test_a_net_that_a_method_cannot_change_is_refused(method):
    net = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
    with pytest.raises(ValueError, match="which has to be an nn.Linear|followed by a ReLU"):
        system = METHODS[method].make(**METHODS[method].strength)
        system.begin(system.adapt(net), Task(1, 10, (1, 8, 8), 1))
    if method == "crn":
        with pytest.raises(ValueError, match="contractions, not BatchNorm2d"):
            system.begin(nn.Sequential(nn.BatchNorm2d(1), *mlp()), Task(1, 10, (1, 8, 8), 1))
