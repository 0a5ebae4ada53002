"""Facts about the regulariser: which margins count, for how much, and that a call leaves no trace."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import RecordingAMM, assert_same, gradients, half_right, make_net
from oracle import NETS, regulariser
from torch import nn

from ammlib import AMM, deepfool
from ammlib.margin.classifier import differs_in_eval_mode

PAIRS = [(aggregation, shrinkage) for aggregation in ("min", "avg") for shrinkage in ("lin", "exp", "inv")]


# ---- against the oracle


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("aggregation, shrinkage", PAIRS)
@pytest.mark.parametrize("kind", NETS)
def test_exact_mode_keeps_the_samples_and_has_the_gradient_of_the_oracle(
    kind, aggregation, shrinkage, relative, digits
):
    net, x = make_net(NETS[kind], gain=1.7), digits[0][:30]
    y = half_right(net, x)
    options = dict(aggregation=aggregation, shrinkage=shrinkage, lam=4.0, c=3.0, d=2.0, relative=relative)
    amm = RecordingAMM(**options, screen=None)
    ours = amm(net, x, y)
    theirs, kept = regulariser(net, x, y, **options)
    assert set(amm.kept.tolist()) == kept and len(amm.kept) == len(kept) == amm.last.kept
    assert_same(ours, theirs)
    assert_same(gradients(ours, net), gradients(theirs, net))


@pytest.mark.parametrize("options", [dict(high_order=False), dict(steps=1), dict(overshoot=0.1), dict(num_rivals=3)])
def test_options_of_the_attack_act_as_in_the_oracle(options, digits):
    net, x = make_net(NETS["conv_max_pool"], gain=1.7), digits[0][:30]
    y = half_right(net, x)
    ours = AMM("min", "exp", 4.0, 3.0, 2.0, screen=None, **options)(net, x, y)
    theirs, _ = regulariser(net, x, y, "min", "exp", 4.0, 3.0, 2.0, **options)
    assert_same(ours, theirs)
    assert_same(gradients(ours, net), gradients(theirs, net))


@pytest.mark.parametrize("batch", [1, 4, 5, 9, 10, 14, 15])
def test_exact_mode_keeps_the_samples_of_the_oracle_at_any_batch_size(batch, digits):
    net = make_net(NETS["tanh_mlp"], gain=1.7)
    for start in range(0, 60, 15):
        x = digits[0][start : start + batch]
        y = half_right(net, x, seed=start) % 3  # few classes: several samples of each
        amm = RecordingAMM(screen=None)
        amm(net, x, y)
        assert set(amm.kept.tolist()) == regulariser(net, x, y, "min", "exp", 32.0, 2.0, 1.0)[1]


@pytest.mark.parametrize("screen", [None, "auto"])
@pytest.mark.parametrize("kind", NETS)
def test_the_strategy_for_a_gpu_gives_the_numbers_of_that_for_a_cpu(kind, screen, digits):
    net, x = make_net(NETS[kind], gain=1.7), digits[0][:60]
    y = half_right(net, x)
    frugal, batched = (RecordingAMM(screen=screen, strategy=strategy) for strategy in ("frugal", "batched"))
    ours, theirs = frugal(net, x, y), batched(net, x, y)
    assert torch.equal(frugal.kept, batched.kept)
    assert_same(ours, theirs)
    assert_same(gradients(ours, net), gradients(theirs, net))


# ---- by hand: a line with its boundary at 0, where overshoot 1 makes every margin 2|x|


def line():
    net = make_net(lambda: nn.Linear(1, 1))
    nn.init.ones_(net.weight)
    nn.init.zeros_(net.bias)
    return net


def on_the_line(points, labels, *args, **options):
    amm = RecordingAMM(*args, overshoot=1.0, **options)
    net = line()
    value = amm(net, torch.tensor(points).double().unsqueeze(1), torch.tensor(labels))
    return value, amm, net


TEN = [1.0, 0.25, -1.0, -0.5, 3.0, 2.0, -0.1, -0.2, 0.3, 0.4]  # the last four are labelled wrongly
LABELS = [1, 1, 0, 0, 1, 1, 1, 1, 0, 0]
# λ = 3, c = 2, d = 1. MIN keeps 0.5 (class 1) and 1 (class 0) of the correct; the largest two of the wrong, 0.8 and
# 0.6, are both of class 0: it keeps one.
EXPECTED = {
    ("min", "lin"): 3 * (-2 * (0.5 + 1) + 0.8),
    ("min", "exp"): 3 * (math.exp(-1) + math.exp(-2) + math.exp(0.8)),
    ("min", "inv"): 3 * (1 / 2 + 1 / 3 + 1 / 0.2),
    ("avg", "lin"): 3 * (-2 * (2 + 0.5 + 2 + 1 + 6 + 4) + 0.2 + 0.4 + 0.6 + 0.8),
    ("avg", "exp"): 3
    * (sum(math.exp(-2 * m) for m in (2, 0.5, 2, 1, 6, 4)) + sum(math.exp(m) for m in (0.2, 0.4, 0.6, 0.8))),
    ("avg", "inv"): 3 * (1 / 5 + 1 / 2 + 1 / 5 + 1 / 3 + 1 / 13 + 1 / 9 + 1 / 0.8 + 1 / 0.6 + 1 / 0.4 + 1 / 0.2),
}


@pytest.mark.parametrize("aggregation, shrinkage", PAIRS)
@pytest.mark.parametrize("screen", [None, "auto"])
def test_value_is_the_sum_over_the_kept_divided_by_the_batch_size(aggregation, shrinkage, screen):
    value, amm, _ = on_the_line(TEN, LABELS, aggregation, shrinkage, 3.0, 2.0, 1.0, screen=screen)
    assert value.item() == pytest.approx(EXPECTED[aggregation, shrinkage] / 10)
    assert sorted(amm.kept.tolist()) == ([1, 3, 9] if aggregation == "min" else list(range(10)))


def test_report_counts_what_happened():
    _, amm, _ = on_the_line(TEN, LABELS, "min", "exp", 3.0, 2.0, 1.0, screen=None)
    assert vars(amm.last) == dict(
        correct=6, misclassified=4, attacked=10, fooled=10, kept=3, margin=pytest.approx((0.5 + 1) / 2)
    )
    _, amm, _ = on_the_line(TEN, LABELS, "avg", "lin", 3.0, 2.0, 1.0)
    assert amm.last.kept == 10 and amm.last.margin == pytest.approx((2 + 0.5 + 2 + 1 + 6 + 4) / 6)
    _, amm, _ = on_the_line([1.0, 2.0], [0, 0])
    assert amm.last.correct == 0 and amm.last.misclassified == 2 and math.isnan(amm.last.margin)


def test_relative_margin_is_divided_by_the_norm_of_the_sample():
    value, _, _ = on_the_line([0.5, -4.0], [1, 0], "avg", "lin", 3.0, 2.0, 1.0, relative=True)
    assert value.item() == pytest.approx(-3 * 2 * (2 + 2) / 2)


@pytest.mark.parametrize("shrinkage", ["lin", "exp", "inv"])
def test_relative_to_nothing_there_is_no_margin(shrinkage):
    net, amm = line(), AMM("avg", shrinkage, 3.0, 2.0, 1.0, relative=True)
    nn.init.ones_(net.bias)
    value = amm(net, torch.tensor([[0.5], [0.0], [-4.0]]).double(), torch.tensor([1, 1, 0]))
    value.backward()
    assert amm.last.kept == 2 and value.isfinite() and all(p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("m", [0.5, 0.9, 1.0, 1.0 + 1e-12, 4.0, 1e6])
def test_inv_never_reaches_its_pole(m):
    value, _, net = on_the_line([m / 2], [0], "avg", "inv", 3.0, 2.0, 1.0)
    assert value.item() == pytest.approx(3 / (1 - m) if m < 0.94 else 50)
    assert gradients(value, net)[1].item() == pytest.approx(6 / (1 - m) ** 2 if m < 0.94 else 0)  # dm/db = 2


@pytest.mark.parametrize("shrinkage", ["exp", "inv"])
@pytest.mark.parametrize("clip", [50.0, 7.0])
def test_exp_and_inv_are_clamped_and_then_have_no_gradient(shrinkage, clip):
    options = {} if clip == 50 else {"clip": clip}
    value, _, net = on_the_line([5.0, 4.0, 3.0, 2.0], [0, 0, 0, 0], "avg", shrinkage, 3.0, 2.0, 1.0, **options)
    assert value.item() == pytest.approx(clip)  # four times the clip, divided by B
    assert all((g == 0).all() for g in gradients(value, net))
    for lam in (clip, 1000.0):  # then all misclassified samples are, from the boundary on
        with pytest.raises(ValueError, match=f"lam must be less than clip, {clip:g}"):
            AMM("avg", shrinkage, lam, **options)


def test_lin_is_not_clamped():
    for point, label, expected in ((500.0, 1, -3 * 2 * 1000), (500.0, 0, 3 * 1000)):
        value, _, _ = on_the_line([point], [label], "min", "lin", 3.0, 2.0, 1.0)
        assert value.item() == pytest.approx(expected)


class Parabola(nn.Module):
    """One logit, x² - b: convex, so that one step falls short of the boundary unless it starts close to it."""

    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x**2 - self.b


@pytest.mark.parametrize("aggregation, kept", [("min", [1]), ("avg", [1, 3])])
def test_samples_that_are_not_fooled_are_left_out(aggregation, kept):
    amm, x = RecordingAMM(aggregation, steps=1, screen=None), torch.tensor([[3.0], [1.01], [2.0], [1.02]])
    assert deepfool(Parabola(), x, steps=1).success.tolist() == [False, True, False, True]
    amm(Parabola(), x, torch.ones(4, dtype=torch.long))
    assert amm.kept.tolist() == kept and amm.last.fooled == 2


@pytest.mark.parametrize("screen", [None, "auto"])
@pytest.mark.parametrize("aggregation, shrinkage", PAIRS)
def test_a_batch_in_which_nothing_is_kept_gives_zero_and_a_backward(aggregation, shrinkage, screen):
    net = make_net(lambda: nn.Linear(3, 4))
    nn.init.zeros_(net.weight)  # constant logits: no boundary anywhere
    logits = net(torch.ones(5, 3).double())
    value = AMM(aggregation, shrinkage, screen=screen)(net, torch.ones(5, 3).double(), torch.arange(5) % 4)
    assert value.item() == 0
    (F.cross_entropy(logits, torch.arange(5) % 4) + value).backward()
    assert net.weight.grad.isfinite().all() and net.weight.grad.any()


# ---- beside a loss, and without a trace


@pytest.mark.parametrize("loss", [F.cross_entropy, F.multi_margin_loss])
@pytest.mark.parametrize("aggregation", ["min", "avg"])
def test_gradients_add_to_those_of_any_loss(aggregation, loss, digits):
    net = make_net(NETS["conv_max_pool"])
    x, y = digits[0][:40], digits[1][:40]
    amm = AMM(aggregation)
    separate = zip(gradients(loss(net(x), y), net), gradients(amm(net, x, y), net), strict=True)
    logits = net(x)
    (loss(logits, y) + amm(net, x, y, logits=logits)).backward()
    assert_same([p.grad for p in net.parameters()], [a + b for a, b in separate])


class BatchNormAndDropout(nn.Module):
    """Draws random numbers in eval mode too, without using them."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Sequential(nn.Linear(144, 20), nn.BatchNorm1d(20), nn.Dropout(0.3), nn.Linear(20, 10))

    def forward(self, x):
        return self.head(self.features(x).flatten(1)) + 0 * torch.rand(())


def used_net(x):
    """In train mode, with running statistics, gradients, a frozen layer and a submodule in eval mode."""
    net = make_net(BatchNormAndDropout)
    net(x).sum().backward()
    net.features[0].requires_grad_(False)
    net.features[1].eval()
    net.head[0].bias.grad = None
    return net


def state(net):
    """All that a call must leave alone, as comparable objects."""
    flags = [module.training for module in net.modules()] + [p.requires_grad for p in net.parameters()]
    tensors = [*net.state_dict().values(), *(p.grad for p in net.parameters()), torch.get_rng_state()]
    return flags, [id(p.grad) for p in net.parameters()], [None if t is None else t.tolist() for t in tensors]


CALLS = {
    "deepfool": lambda net, x, y, logits: deepfool(net, x),
    "targeted": lambda net, x, y, logits: deepfool(net, x, y),
    "min": lambda net, x, y, logits: AMM("min")(net, x, y),
    "exact": lambda net, x, y, logits: AMM("min", screen=None)(net, x, y),
    "avg": lambda net, x, y, logits: AMM("avg")(net, x, y),
    "min with logits": lambda net, x, y, logits: AMM("min")(net, x, y, logits),
}


@pytest.mark.parametrize("mode", ["train", "mixed", "eval"])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_leaves_model_input_and_random_state_as_they_were(call, mode, digits):
    x, y = digits[0][:20].clone().requires_grad_(), digits[1][:20]
    net = used_net(x)
    if mode != "mixed":
        net.train(mode == "train")
    logits = copy.deepcopy(net)(x)
    x.grad = torch.ones_like(x)
    before = state(net)
    CALLS[call](net, x, y, logits)
    assert state(net) == before
    assert x.requires_grad and (x.grad == 1).all() and torch.equal(x, digits[0][:20])


def test_a_failed_call_leaves_the_model_in_its_mode(digits):
    net = used_net(digits[0][:20])
    before = state(net)
    with pytest.raises(ValueError):
        AMM()(net, digits[0][:20] / 0, digits[1][:20])
    assert state(net) == before


@pytest.mark.parametrize("aggregation", ["min", "avg"])
def test_train_mode_gives_what_eval_mode_gives_and_does_not_trust_logits_of_train_mode(aggregation, digits):
    x, y = digits[0][:20], digits[1][:20]
    net, amm = used_net(x).requires_grad_(), AMM(aggregation)
    expected = amm(net.eval(), x, y)
    expected_gradients = gradients(expected, net)
    logits = copy.deepcopy(net.train())(x)
    for value in (amm(net, x, y), amm(net, x, y, logits=logits)):
        assert value == expected
        assert_same(gradients(value, net), expected_gradients)


@pytest.mark.parametrize("mode", [True, False])
def test_logits_of_another_batch_are_refused_also_where_they_are_not_used(mode, digits):
    x, y = digits[0][:20], digits[1][:20]
    net = used_net(x).train(mode)
    with pytest.raises(ValueError, match=r"logits must have shape \(20, classes\), got \(16, 10\)"):
        AMM()(net, x, y, logits=net(x[:16]))


@pytest.mark.parametrize("dropout, differs", [(0.0, False), (0.5, True)])
def test_dropout_inside_a_recurrent_net_is_seen(dropout, differs):
    net = nn.LSTM(3, 4, num_layers=2, dropout=dropout)
    assert differs_in_eval_mode(net) is differs and not differs_in_eval_mode(net.eval())


def test_logits_save_a_forward_and_change_nothing(digits):
    x, y = digits[0][:20], digits[1][:20]
    net, amm, calls = make_net(NETS["conv_max_pool"]), AMM(), []
    net.register_forward_hook(lambda *args: calls.append(len(args[1][0])))
    logits = net(x)
    calls.clear()
    value = amm(net, x, y)
    without = len(calls)
    assert amm(net, x, y, logits=logits) == value and len(calls) == 2 * without - 1


def test_a_tie_with_a_class_of_the_same_gradient_is_screened_as_it_is_followed():
    model = nn.Linear(2, 3, bias=False)
    model.weight.data = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    x, y = torch.tensor([[1.0, 0.5], [2.0, 1.0]]), torch.tensor([0, 0])
    assert AMM()(model, x, y) == AMM(screen=None)(model, x, y) > 0


def test_backward_reaches_only_trainable_weights(digits):
    net = make_net(NETS["conv_max_pool"])
    net[0].requires_grad_(False)
    AMM("avg")(net, digits[0][:20], digits[1][:20]).backward()
    assert net[0].weight.grad is None and net[6].weight.grad.any()


# ---- errors


X, Y = torch.linspace(0.1, 1, 4 * 64).view(4, 64), torch.arange(4)


@pytest.mark.parametrize(
    "x, y, logits, error, message",
    [
        (X, Y + 7, None, ValueError, r"0\.\.9, got 7\.\.10"),
        (X, Y - 1, None, ValueError, r"0\.\.9, got -1\.\.2"),
        (X, Y.float(), None, TypeError, "int64.*float32"),
        (X, Y[:3], None, ValueError, r"labels must have shape \(4,\), got \(3,\)"),
        (X, Y.view(2, 2), None, ValueError, r"labels must have shape \(4,\), got \(2, 2\)"),
        (X[0], Y, None, ValueError, r"batch of samples, \(B, \.\.\.\), got shape \(64,\)"),
        (X, Y, torch.zeros(3, 10), ValueError, r"logits must have shape \(4, classes\), got \(3, 10\)"),
        (X, Y, torch.zeros(4, 10, 2), ValueError, r"logits must have shape \(4, classes\), got \(4, 10, 2\)"),
        (X, Y, torch.full((4, 10), torch.nan), ValueError, "logits contains NaN"),
        (X / 0, Y, None, ValueError, "x contains NaN or infinite"),
        (X * torch.nan, Y, None, ValueError, "x contains NaN or infinite"),
        (X[:0], Y[:0], None, ValueError, "empty"),
        ((255 * X).long(), Y, None, TypeError, "floating-point.*int64"),
        ((255 * X).byte(), Y, None, TypeError, "floating-point.*uint8"),
    ],
)
def test_a_bad_batch_is_an_error_that_says_what_is_wrong(x, y, logits, error, message):
    net = nn.Linear(64, 10)
    with pytest.raises(error, match=message):
        AMM()(net, x, y, logits)
    if logits is None:
        with pytest.raises(error, match=message):
            deepfool(net, x, y)


@pytest.mark.parametrize("infinite", [torch.nan, torch.inf])
def test_a_model_whose_logits_are_not_finite_is_an_error(infinite):
    net = nn.Linear(64, 10)
    nn.init.constant_(net.bias, infinite)
    for call in (lambda: deepfool(net, X), lambda: AMM()(net, X, Y)):
        with pytest.raises(ValueError, match="logits contains NaN or infinite"):
            call()


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(aggregation="max"), "unknown aggregation 'max'; choose from min, avg"),
        (dict(shrinkage="log"), "unknown shrinkage 'log'; choose from lin, exp, inv"),
        *(({name: value}, f"{name} must be positive") for name in ("lam", "c", "d", "clip") for value in (0, -1)),
        (dict(lam=math.nan), "lam must be positive"),
        (dict(screen="x"), "screen must be 'auto' or None, got 'x'"),
        (dict(steps=0), "steps must be at least 1, got 0"),
        (dict(num_rivals=1), "num_rivals"),
        (dict(overshoot=-0.1), "overshoot"),
    ],
)
def test_a_bad_option_is_an_error_before_any_work(options, message):
    with pytest.raises(ValueError, match=message):
        AMM(**options)
    if not options.keys() - {"steps", "num_rivals", "overshoot"}:
        with pytest.raises(ValueError, match=message):
            deepfool(nn.Linear(64, 10), X, **options)
