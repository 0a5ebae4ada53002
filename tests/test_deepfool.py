"""Facts about the attack and the differentiable margin."""

import pytest
import torch
from conftest import Affine, assert_same, gradients, half_right, make_net, rivals
from oracle import NETS, attack
from torch import nn
from torch.func import functional_call

from ammlib import deepfool
from ammlib.margin.deepfool import margin, walk
from ammlib.margin.gradients import STRATEGIES, View, look
from ammlib.margin.trajectories import Course

SHAPES = [(5,), (1, 8, 8), (3, 4, 4)]
DTYPES = {torch.float32: 1e-4, torch.float64: 1e-11}  # and how exactly a distance must be met


# ---- linear classifiers: closed forms


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [1, 3, 64])
def test_linear_multiclass_norm_is_the_distance_to_the_nearest_boundary(batch, shape, dtype):
    torch.manual_seed(batch)
    model, x = Affine(shape, 6, dtype), torch.randn(batch, *shape, dtype=dtype)
    result = deepfool(model, x)
    expected = model.distance(x, rivals(model(x))).amin(1)
    torch.testing.assert_close(result.norm, 1.02 * expected.detach(), rtol=DTYPES[dtype], atol=0)
    torch.testing.assert_close(result.delta.flatten(1).norm(dim=1), result.norm)
    assert (result.steps == 1).all() and result.success.all()
    assert (model(x + result.delta).argmax(1) != model(x).argmax(1)).all()
    assert result.delta.shape == x.shape and result.norm.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [1, 3, 64])
@pytest.mark.parametrize("flat", [False, True])
def test_single_logit_norm_is_the_distance_to_the_hyperplane(flat, batch, shape, dtype):
    torch.manual_seed(batch)
    model, x = Affine(shape, 1, dtype, flat), torch.randn(batch, *shape, dtype=dtype)
    expected = 1.02 * model(x).flatten().abs() / model.weight.norm()
    wrong = (model(x).flatten() < 0).long()  # targeted at the other side: for two classes the same attack
    for y in (None, 1 - wrong, wrong):
        result = deepfool(model, x, y)
        torch.testing.assert_close(result.norm, expected.detach(), rtol=DTYPES[dtype], atol=0)
        assert (result.steps == 1).all() and result.success.all()
        assert (model(x + result.delta).sign() == -model(x).sign()).all()


@pytest.mark.parametrize("seed", range(6))
def test_gradients_of_very_different_lengths_are_followed_as_by_the_oracle(seed):
    net = make_net(lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10)), gain=2.0, seed=seed)
    with torch.no_grad():
        net[2].weight.mul_((1.5 * torch.randn(10, 1)).exp())
    x = torch.randn(40, 8).double()
    norms, success = attack(net, x)
    result = deepfool(net, x)
    fooled = torch.tensor(success)
    assert torch.equal(result.success, fooled) and fooled.any()
    torch.testing.assert_close(result.norm[fooled], torch.stack(norms)[fooled].detach(), rtol=1e-9, atol=0)


def test_targeted_step_ends_at_the_boundary_of_the_label():
    torch.manual_seed(0)
    model, x, y = Affine((3, 4, 4), 6), torch.randn(64, 3, 4, 4).double(), torch.randint(6, (64,))
    wrong = model(x).argmax(1) != y
    result = deepfool(model, x, y, steps=1)
    expected = 1.02 * model.distance(x, y.unsqueeze(1)).squeeze(1).detach()
    torch.testing.assert_close(result.norm[wrong], expected[wrong])
    torch.testing.assert_close(result.norm[~wrong], deepfool(model, x).norm[~wrong])
    assert 0 < wrong.sum() < 64 and result.success[wrong].any()
    assert ((model(x + result.delta).argmax(1) == y) == result.success)[wrong].all()


def test_only_the_highest_logits_are_rivals():
    torch.manual_seed(0)
    model, x = Affine((5,), 40), torch.randn(64, 5).double()
    for num_rivals in (2, 4, 10, 40):
        expected = 1.02 * model.distance(x, rivals(model(x))[:, : num_rivals - 1]).amin(1)
        torch.testing.assert_close(deepfool(model, x, steps=1, num_rivals=num_rivals).norm, expected.detach())


def test_overshoot_scales_the_step():
    torch.manual_seed(0)
    model, x = Affine((5,), 4), torch.randn(8, 5).double()
    torch.testing.assert_close(deepfool(model, x, overshoot=0.5).norm, deepfool(model, x).norm * 1.5 / 1.02)


# ---- the margin as a function of the weights


def margins_of(net, x, y=None, high_order=True, strategy="frugal", **options):
    """Differentiable margins of all samples that took a step, as the regulariser computes them."""
    f = net(x).detach()
    path = walk(net, View.of(x, f), Course.of(View.of(x, f), y, num_rivals=10), STRATEGIES[strategy], **options)
    return path, margin(net, path, torch.arange(len(x)), high_order=high_order)


class WithWeights(nn.Module):
    """A net with other weights in place of its own."""

    def __init__(self, net, weights):
        super().__init__()
        self.net, self.weights = net, dict(zip(dict(net.named_parameters()), weights, strict=True))

    def forward(self, x):
        return functional_call(self.net, self.weights, (x,))


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Softplus])
def test_gradient_of_one_iteration_is_the_true_derivative_on_smooth_nets(activation):
    net = make_net(lambda: nn.Sequential(nn.Linear(4, 5), activation(), nn.Linear(5, 3)), gain=2)
    x, y = torch.randn(6, 4).double(), torch.tensor([0, 1, 2, 0, 1, 2])
    assert 0 < (net(x).argmax(1) == y).sum() < 6
    torch.autograd.gradcheck(lambda *w: margins_of(WithWeights(net, w), x, y, steps=1)[1], tuple(net.parameters()))


@pytest.mark.parametrize("targeted", [False, True])
def test_gradient_of_several_iterations_is_the_true_derivative_on_piecewise_linear_nets(targeted):
    net = make_net(lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)), 3)
    x = torch.randn(12, 4).double()
    y = (net(x).argmin(1)) if targeted else None
    path, _ = margins_of(net, x, y)
    assert len(path.steps) >= 4 and path.steps[2].moved.sum() >= 2  # it is about several iterations
    torch.autograd.gradcheck(lambda *w: margins_of(WithWeights(net, w), x, y)[1], tuple(net.parameters()))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("high_order", [True, False])
@pytest.mark.parametrize("steps", range(1, 7))
@pytest.mark.parametrize("kind", NETS)
def test_margin_and_gradient_equal_the_oracle(kind, steps, high_order, strategy, digits):
    net = make_net(NETS[kind], gain=1.7)
    x = digits[0][:12]
    y = half_right(net, x)
    path, ours = margins_of(net, x, y, high_order, strategy, steps=steps)
    theirs, success = attack(net, x, y, steps=steps, high_order=high_order)
    theirs = torch.stack(theirs)
    assert_same(ours, theirs)
    assert_same(path.norm, theirs)
    assert path.success.tolist() == success
    assert len(path.steps) >= min(steps, 3)
    mix = torch.linspace(-1, 2, len(x)).double()  # tells the samples apart
    assert_same(gradients(ours @ mix, net), gradients(theirs @ mix, net))


@pytest.mark.parametrize("kind", NETS)
def test_margin_of_some_rows_is_that_of_these_rows(kind, digits):
    net, x = make_net(NETS[kind], gain=1.7), digits[0][:12]
    path, every = margins_of(net, x)
    rows = torch.tensor([7, 2, 11])
    some = margin(net, path, rows)
    assert_same(some, every[rows])
    assert_same(gradients(some.sum(), net), gradients(every[rows].sum(), net))


@pytest.mark.parametrize("kind", NETS)
def test_without_high_order_gradients_the_value_is_the_same_and_the_gradient_is_not(kind, digits):
    net, x = make_net(NETS[kind], gain=1.7), digits[0][:12]
    (_, full), (_, masked) = margins_of(net, x), margins_of(net, x, high_order=False)
    assert_same(masked, full)
    full, masked = (torch.cat([g.flatten() for g in gradients(m.sum(), net)]) for m in (full, masked))
    assert (full - masked).norm() > 0.01 * full.norm()


# ---- any model


class CubeWithoutVmap(torch.autograd.Function):
    """x³, whose backward looks at values, which vmap cannot batch."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad if grad.any() else torch.zeros_like(x)


class Cube(nn.Module):
    def __init__(self, custom):
        super().__init__()
        self.inner, self.outer, self.custom = nn.Linear(6, 8), nn.Linear(8, 10), custom

    def forward(self, x):
        h = self.inner(x)
        return self.outer(CubeWithoutVmap.apply(h) if self.custom else h**3)


def test_operations_without_vmap_support_give_the_same_numbers():
    plain, custom = make_net(lambda: Cube(False)), make_net(lambda: Cube(True))
    x = torch.randn(16, 6).double()
    with pytest.raises(RuntimeError, match="Batching rule"):  # the case is what it says
        torch.autograd.grad(custom(x), list(custom.parameters()), torch.ones(2, 16, 10).double(), is_grads_batched=True)
    a, b = deepfool(plain, x), deepfool(custom, x)
    assert_same((a.delta, a.norm), (b.delta, b.norm))
    assert torch.equal(a.steps, b.steps) and a.success.any()
    assert_same(*(gradients(margins_of(net, x)[1].sum(), net) for net in (plain, custom)))


def test_every_point_is_looked_at_once_while_most_samples_go_on(digits):
    net, x, calls = make_net(NETS["conv_max_pool"]), digits[0][:20], []
    net.register_forward_hook(lambda *args: calls.append(len(args[1][0])))
    steps = deepfool(net, x, overshoot=0.0, steps=2, num_rivals=2).steps  # without overshoot few arrive at once
    on = [int((steps > i).sum()) for i in range(2)]
    assert on[0] == 20 < 2 * on[1]  # the case is what it says
    assert calls == [20, *on, 20]  # clean, after each step, and the result


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_graph_at_the_clean_samples_changes_nothing_but_the_work(strategy, digits):
    net, x, y = make_net(NETS["conv_max_pool"]), digits[0][:20], digits[1][:20]
    with_graph, without = look(net, x), View.of(x, net(x).detach())
    course = Course.of(without, y, num_rivals=10)
    a, b = (walk(net, clean, course, STRATEGIES[strategy]) for clean in (with_graph, without))
    assert_same((a.delta, a.norm), (b.delta, b.norm))
    assert torch.equal(a.success, b.success) and a.success.any() and not a.delta.requires_grad


def test_inference_tensors_are_fine_and_inference_mode_is_refused():
    model = Affine((5,), 4)
    with torch.inference_mode():
        x = torch.randn(8, 5).double()
        with pytest.raises(RuntimeError, match="no_grad"):
            deepfool(model, x)
    assert deepfool(model, x).success.all()


class Viewing(nn.Module):
    """Flattens with `view(len(x), -1)`, which cannot take an empty batch; constant beyond a saturation."""

    def forward(self, x):
        return x.view(len(x), -1)[:, :4].clamp(-0.5, 0.5)


def test_the_model_never_sees_an_empty_batch():
    x = torch.full((3, 2, 2), 2.0)
    result = deepfool(Viewing(), x - torch.tensor([[0.0, 5.0], [5.0, 5.0]]))
    assert not result.success.any() and (result.norm == 0).all() and (result.steps == 0).all()


def batch_norm_and_dropout():
    layers = nn.Flatten(), nn.Linear(64, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 10)
    return nn.Sequential(*layers)


def test_train_mode_gives_the_result_of_eval_mode(digits):
    net, x = make_net(batch_norm_and_dropout), digits[0][:20]
    net(x)  # running statistics that differ from their start
    train, evaluated = deepfool(net.train(), x), deepfool(net.eval(), x)
    assert torch.equal(train.delta, evaluated.delta) and torch.equal(train.success, evaluated.success)


@pytest.mark.parametrize("grad", [True, False])
def test_no_grad_and_inputs_that_require_grad_change_nothing(grad, digits):
    net, x = make_net(batch_norm_and_dropout).eval(), digits[0][:20].clone()
    expected = deepfool(net, x)
    with torch.set_grad_enabled(grad):
        result = deepfool(net, x.requires_grad_())
    assert torch.equal(result.delta, expected.delta) and not result.delta.requires_grad
    assert x.requires_grad and x.grad is None
