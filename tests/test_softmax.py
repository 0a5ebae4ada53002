"""Facts about L-Softmax and EM-Softmax: closed forms, heads that fold into one, nets that are averaged."""

import math

import pytest
import torch
from trainings import mlp, tiny

from ammlib.methods import softmax
from ammlib.methods.layers import head_of
from ammlib.methods.method import Batch
from ammlib.methods.registry import METHODS
from ammlib.methods.softmax import EMSoftmax, committee_of, folded, hsic, large_margin_logits, psi
from ammlib.training.train import train

pytestmark = pytest.mark.usefixtures("own_folders")


# ---- L-Softmax


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_psi_is_cos_m_theta_continued_downwards(m):
    theta = torch.linspace(0, math.pi, 1001, dtype=torch.float64)[:-1]
    k = (m * theta / math.pi).floor()
    torch.testing.assert_close(psi(theta.cos(), m), (-1) ** k * (m * theta).cos() - 2 * k, rtol=0, atol=1e-9)
    values = psi(theta.cos(), m)
    assert (values.diff() < 1e-12).all() and (values <= theta.cos() + 1e-12).all() and values[0] == 1
    assert psi(torch.tensor([-1.0]), m).item() == pytest.approx(1 - 2 * m)


def test_l_softmax_changes_the_label_s_logit_alone():
    torch.manual_seed(0)
    v, w, y = torch.randn(6, 5), torch.randn(4, 5), torch.arange(6) % 4
    f = v @ w.T
    theta = (f[range(6), y] / (v.norm(dim=1) * w[y].norm(dim=1))).acos()
    hard = v.norm(dim=1) * w[y].norm(dim=1) * psi(theta.cos(), 3)
    found = large_margin_logits(f, v, w, y, 3, lam=2.0)
    torch.testing.assert_close(found[range(6), y], (2 * f[range(6), y] + hard) / 3)
    assert ((found != f).sum(1) <= 1).all()


def test_l_softmax_s_lambda_falls_with_the_steps_alone(monkeypatch):
    found = []
    monkeypatch.setattr(softmax, "large_margin_logits", lambda f, *rest, **_: found.append(rest[-1]) or f)
    system, x, y = METHODS["l_softmax"].make(), torch.rand(2, 1, 8, 8), torch.arange(2)
    for step in (0, 600, 6000, 12000):
        system.loss(mlp(), Batch(x, y, step=step))
    assert found == [1000.0, pytest.approx(594, abs=0.5), pytest.approx(7.5, abs=0.05), pytest.approx(0.10, abs=0.005)]


# ---- EM-Softmax


def test_hsic_by_hand():
    u, v = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[2.0], [0.0]])
    # K_u = I, K_v = diag(4, 0), H = [[.5, -.5], [-.5, .5]]: tr(H K_v H) = tr(K_v H) = 2
    assert hsic(u, v).item() == pytest.approx(2.0) and hsic(v, u).item() == pytest.approx(2.0)


def test_several_heads_fold_into_one_and_several_nets_are_averaged():
    torch.manual_seed(0)
    x = torch.rand(5, 1, 8, 8)
    net = EMSoftmax().adapt(mlp())
    heads = committee_of(net).members
    assert not torch.equal(heads[0].weight, heads[1].weight)
    plain = folded(net)
    assert [type(layer) for layer in plain] == [type(layer) for layer in mlp()]
    torch.testing.assert_close(plain(x), net(x))
    two = EMSoftmax(members=2).adapt(mlp())
    first, second = committee_of(two).members
    assert not torch.equal(first[1].weight, second[1].weight)
    torch.testing.assert_close(two(x), (first(x) + second(x)) / 2)
    with pytest.raises(ValueError, match="only the heads of one net can be folded"):
        folded(two)


def test_em_softmax_trains_two_nets():
    training = train(tiny("em_softmax", members=2, epochs=8), 0, progress=False)
    losses, errors = ([epoch[name] for epoch in training.history] for name in ("loss", "train_error"))
    assert losses[-1] < 0.8 * losses[0] and errors[-1] < errors[0]
    first, second = (head_of(member).weight for member in committee_of(training.model).members)
    assert not torch.equal(first, second)
