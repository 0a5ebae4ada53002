"""Facts about the classifiers people have: transformers, mixed precision, compiled ones, any form of output."""

import copy
import io
import pickle
import warnings
from collections import OrderedDict, namedtuple
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_same, gradients, half_right, make_net
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ammlib import AMM, Elsayed, deepfool, margins
from ammlib.data.vision import torchvision
from ammlib.margin.baselines import Refined
from ammlib.margin.tight import tight

X, Y = torch.linspace(-1, 1, 4 * 64).view(4, 64), torch.arange(4) % 2
REGULARISERS = {"min": AMM, "avg": lambda: AMM("avg"), "elsayed": Elsayed, "refined": Refined}


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))


def batch(net, digits, n=20, dtype=torch.float32):
    """Images, and labels half of which are right."""
    x = digits[0][:n].to(dtype)
    return x, half_right(net.eval(), x)


def numbers(net, x, y, logits=None, inside=nullcontext):
    """All that the library finds about a batch: the regularisers with their gradients, and the norms."""
    with inside():
        values = [make()(net, x, y, logits=logits) for make in REGULARISERS.values()]
        norms = [deepfool(net, x).norm, deepfool(net, x, y).norm, tight(net, x, steps=5).norm]
        norms.append(margins(net, (x, y), progress=False).norm)
    return [*values, *(g for value in values for g in gradients(value, net)), *norms]


def warned(call):
    """The messages of the warnings that a call gives."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in seen]


# ---- attention


class Attention(nn.Module):
    """Pixel rows attend to each other; it remembers whether another kernel than the plain one was allowed."""

    def __init__(self):
        super().__init__()
        self.qkv, self.head, self.fused = nn.Linear(8, 24), nn.Linear(64, 10), []

    def forward(self, x):
        self.fused.append(torch.backends.cuda.flash_sdp_enabled())
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.head(F.scaled_dot_product_attention(q, k, v).flatten(1))


def vit():
    """torchvision's, whose head is zero at first."""
    sizes = dict(image_size=8, patch_size=4, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=10)
    net = nn.Sequential(nn.Conv2d(1, 3, 1), torchvision.models.VisionTransformer(**sizes))
    nn.init.normal_(net[1].heads.head.weight)
    return net


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.Sequential(nn.Flatten(1, 2), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(64, 10))


TRANSFORMERS = {"torchvision": vit, "nn.TransformerEncoder": encoder, "functional": Attention}


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-3)])
@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_a_transformer_has_the_numbers_of_plain_attention(kind, dtype, tolerance, digits):
    net = make_net(TRANSFORMERS[kind], dtype=dtype)
    x, y = batch(net, digits, dtype=dtype)
    ours = numbers(net, x, y)
    with sdpa_kernel(SDPBackend.MATH):
        theirs = numbers(net, x, y)
    assert_same(ours, theirs, tolerance)
    assert all(value > 0 for value in ours[:2]) and any(g.any() for g in ours[4:7])


@pytest.mark.parametrize("strategy", ["frugal", "batched"])
@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_a_loss_with_a_transformers_margins_has_a_backward(kind, strategy, digits):
    net = make_net(TRANSFORMERS[kind], dtype=torch.float32)
    x, y = batch(net, digits)
    logits = net.train()(x)
    (F.cross_entropy(logits, y) + AMM(strategy=strategy)(net, x, y, logits=logits)).backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize(
    "make, plain", [(AMM, 1), (lambda: Elsayed(), 1), (None, 0)], ids=["AMM", "Elsayed", "margins"]
)
def test_only_second_derivatives_take_plain_attention(make, plain, digits):
    net = make_net(Attention, dtype=torch.float32)
    x, y = batch(net, digits)
    net.fused.clear()
    margins(net, x, progress=False) if make is None else make()(net, x, y)
    assert net.fused.count(False) == plain < net.fused.count(True)
    assert torch.backends.cuda.flash_sdp_enabled()


# ---- mixed precision


@pytest.mark.parametrize("with_logits", [False, True])
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["mlp", "torchvision"])
def test_autocast_changes_nothing(kind, precision, with_logits, digits):
    net = make_net(mlp if kind == "mlp" else vit, dtype=torch.float32)
    x, y = batch(net, digits)
    expected = numbers(net, x, y)
    with torch.autocast("cpu", precision):
        logits = net(x) if with_logits else None
    found = numbers(net, x, y, logits, lambda: torch.autocast("cpu", precision))
    assert_same(found, expected, 1e-5)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16], ids=str)
def test_logits_of_another_precision_are_not_trusted(precision, digits):
    net = make_net(mlp, dtype=torch.float32)
    x, y = batch(net, digits)
    expected = numbers(net, x, y)
    with torch.autocast("cpu", precision):
        logits = net(x)
    assert logits.dtype == precision
    assert all(map(torch.equal, numbers(net, x, y, logits), expected))


class OfItsOwn(nn.Module):
    """Works in a precision of its own, by its weights or by autocast inside."""

    def __init__(self, dtype, inside):
        super().__init__()
        self.net, self.dtype, self.inside = mlp().to(torch.float32 if inside else dtype), dtype, inside

    def forward(self, x):
        with torch.autocast("cpu", self.dtype, enabled=self.inside):
            return self.net(x if self.inside else x.to(self.dtype))


@pytest.mark.parametrize("strategy", ["frugal", "batched"])
@pytest.mark.parametrize(
    "dtype, inside", [(torch.bfloat16, True), (torch.bfloat16, False), (torch.float64, False)], ids=str
)
def test_logits_may_have_another_precision_than_the_data(dtype, inside, strategy, digits):
    torch.manual_seed(0)
    net, x, y = OfItsOwn(dtype, inside), digits[0][:20].float(), digits[1][:20]
    weak = {"lam": 1.0, "strategy": strategy}  # so that truncation leaves gradients
    for regulariser in (AMM(**weak), AMM("avg", **weak), Elsayed(), Refined()):
        value = regulariser(net, x, y, logits=net(x))
        assert value > 0 and value.dtype == torch.float32 and any(g.any() for g in gradients(value, net))
    for found in (deepfool(net, x, strategy=strategy), tight(net, x), margins(net, (x, y), progress=False)):
        assert found.norm.dtype == torch.float32 and found.norm.isfinite().all() and found.success.any()


def test_a_loss_under_autocast_is_trained_as_usual(digits):
    net = make_net(mlp, dtype=torch.float32)
    x, y = batch(net, digits)
    separate = zip(gradients(F.cross_entropy(net(x), y), net), gradients(AMM()(net, x, y), net), strict=True)
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(x)
        objective = F.cross_entropy(logits, y) + AMM()(net, x, y, logits=logits)
    objective.backward()
    assert_same([p.grad for p in net.parameters()], [a + b for a, b in separate], 0.02)


# ---- compiled


class Own(nn.Module):
    """Of a class that is not torch's: `compile` of nn.Sequential itself compiles nothing."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        return self.net(x)


def compiled_in_place(net, **options):
    net.compile(**options)
    return net


def compiled_in_part(net, **options):
    net.net[1] = torch.compile(net.net[1], **options)
    return net


COMPILED = {"torch.compile": torch.compile, "model.compile": compiled_in_place, "in part": compiled_in_part}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("form", COMPILED)
def test_a_compiled_model_has_the_numbers_of_the_original(form, backend, digits):
    torch.compiler.reset()
    net = make_net(Own, dtype=torch.float32)
    x, y = batch(net, digits)
    compiled = COMPILED[form](copy.deepcopy(net), backend=backend)
    logits = compiled(x)
    assert_same(numbers(compiled, x, y), numbers(net, x, y), 1e-5)
    assert_same(numbers(compiled, x, y, logits), numbers(net, x, y), 1e-5)
    (F.cross_entropy(logits, y) + AMM()(compiled, x, y, logits=logits)).backward()
    assert all(p.grad.any() for p in compiled.parameters())


@pytest.mark.parametrize("form", COMPILED)
def test_compiled_code_rests_during_the_attack_and_goes_on_afterwards(form, digits):
    torch.compiler.reset()
    ran = []

    def backend(graph, _):
        return lambda *args: ran.append(1) or graph(*args)

    net = make_net(Own, dtype=torch.float32)
    x, y = batch(net, digits)
    compiled = COMPILED[form](net, backend=backend)
    compiled(x)
    once = len(ran)
    numbers(compiled, x, y)
    assert len(ran) == once > 0
    compiled(x)
    assert len(ran) == 2 * once


# ---- outputs


class ModelOutput(OrderedDict):
    """As Hugging Face's: entries are attributes too, and absent ones are None."""

    def __init__(self, logits):
        super().__init__(logits=logits)
        self.logits, self.loss = logits, None

    def __getitem__(self, key):
        return super().__getitem__(key) if isinstance(key, str) else tuple(self.values())[key]


class Gives(nn.Module):
    """A net with another form of output."""

    def __init__(self, net, form):
        super().__init__()
        self.net, self.form = net, form

    def forward(self, x):
        return self.form(self.net(x))


OUTPUTS = {
    "object": lambda f: SimpleNamespace(logits=f, hidden=None),
    "named tuple": namedtuple("Output", "logits"),
    "dict": lambda f: {"loss": None, "logits": f},
    "model output": ModelOutput,
}
OTHERS = {"tuple": lambda f: (f, f), "NoneType": lambda f: None, "dict": lambda f: {"out": f}, "list": lambda f: [f]}


@pytest.mark.parametrize("form", OUTPUTS)
def test_an_output_with_logits_is_as_good_as_logits(form, digits):
    net = make_net(mlp, dtype=torch.float32)
    x, y = batch(net, digits)
    model, expected = Gives(net, OUTPUTS[form]), numbers(net, x, y)
    assert all(map(torch.equal, numbers(model, x, y), expected))
    assert all(map(torch.equal, numbers(model, x, y, logits=model(x)), expected))


@pytest.mark.parametrize("form", OTHERS)
def test_any_other_output_is_an_error_that_names_it(form, digits):
    model, x = Gives(make_net(mlp, dtype=torch.float32), OTHERS[form]), digits[0][:4].float()
    calls = (
        lambda: deepfool(model, x),
        lambda: AMM()(model, x, digits[1][:4]),
        lambda: AMM()(model.net, x, digits[1][:4], logits=OTHERS[form](model.net(x)) or ()),
        lambda: margins(model, x, progress=False),
    )
    for call in calls[:2] + calls[3:] if form == "NoneType" else calls:
        with pytest.raises(TypeError, match=f"tensor of logits, or an output with `.logits`; got {form}"):
            call()


@pytest.mark.parametrize("classes", [1, 10])
def test_a_net_that_squeezes_a_batch_of_one_has_the_numbers_of_one_that_does_not(classes, digits):
    net = make_net(lambda: nn.Sequential(mlp(), nn.Linear(10, classes)), dtype=torch.float32)
    squeezing, x, y = Gives(net, torch.squeeze), digits[0][:20].float(), digits[1][:20] % 2
    assert all(map(torch.equal, numbers(squeezing, x, y), numbers(net, x, y)))
    for i in range(3):
        one, label = x[i : i + 1], y[i : i + 1]
        assert torch.equal(AMM()(squeezing, one, label, logits=squeezing(one)), AMM()(net, one, label))


@pytest.mark.parametrize(
    "form, error, message",
    [
        (lambda f: f.argmax(1), TypeError, "floating-point, got torch.int64; predicted classes have no margin"),
        (lambda f: f > 0, TypeError, "floating-point, got torch.bool"),
        (torch.mean, ValueError, r"logits must have shape \(4, classes\), got \(1,\)"),
        (lambda f: f[:3], ValueError, r"logits must have shape \(4, classes\), got \(3, 10\)"),
        (lambda f: f[:, :, None], ValueError, r"logits must have shape \(4, classes\), got \(4, 10, 1\)"),
    ],
)
def test_a_tensor_that_holds_no_logits_is_an_error_that_says_so(form, error, message, digits):
    model, x, y = Gives(make_net(mlp, dtype=torch.float32), form), digits[0][:4].float(), digits[1][:4]
    for call in (lambda: deepfool(model, x), lambda: AMM()(model, x, y), lambda: margins(model, x, progress=False)):
        with pytest.raises(error, match=message):
            call()


# ---- nothing is fooled


def linear(classes, *last, scale=1.0, weight=None, bias=None):
    """A linear net whose weights and biases may be constants."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, classes), *last)
    with torch.no_grad():
        net[1].weight.mul_(scale) if weight is None else net[1].weight.fill_(weight)
        if bias is not None:
            net[1].bias.fill_(bias)
    return net


PROBABILITIES, DEAD = "leave out the final softmax or sigmoid", "the net seems dead"
NOT_FOOLED = {
    "softmax": (lambda: linear(10, nn.Softmax(1), scale=1e4), PROBABILITIES),
    "sigmoid": (lambda: linear(1, nn.Sigmoid()), PROBABILITIES),
    "sigmoid, flat": (lambda: linear(1, nn.Sigmoid(), nn.Flatten(0)), PROBABILITIES),
    "saturated sigmoid": (lambda: linear(1, nn.Sigmoid(), weight=0.0, bias=100.0), PROBABILITIES),
    "sigmoids": (lambda: linear(10, nn.Sigmoid(), scale=1e5), PROBABILITIES),
    "zero": (lambda: linear(10, weight=0.0, bias=0.0), DEAD),
    "constant": (lambda: linear(10, weight=0.0), DEAD),
    "constant logit": (lambda: linear(1, weight=0.0, bias=0.3), DEAD),
    "dead units": (lambda: nn.Sequential(linear(20, nn.ReLU(), bias=-1e3), nn.Linear(20, 10)), DEAD),
}
HEALTHY = {
    "logits": mlp,
    "one logit": lambda: linear(1, bias=0.0),
    "log-softmax": lambda: nn.Sequential(mlp(), nn.LogSoftmax(1)),
    "unsaturated softmax": lambda: nn.Sequential(mlp(), nn.Softmax(1)),
}


@pytest.mark.parametrize("kind", NOT_FOOLED)
@pytest.mark.parametrize("aggregation", ["min", "avg"])
def test_where_nothing_is_fooled_the_regulariser_warns_once_and_says_why(aggregation, kind, digits):
    make, why = NOT_FOOLED[kind]
    net, amm, x, y = make_net(make, dtype=torch.float32), AMM(aggregation), digits[0][:20].float(), digits[1][:20] % 2
    seen = warned(lambda: [amm(net, x, y) for _ in range(3)])
    assert len(seen) == 1 and "no sample was fooled, so that the term is zero" in seen[0] and why in seen[0]


@pytest.mark.parametrize("kind", NOT_FOOLED)
def test_where_nothing_is_fooled_margins_warn_once_and_say_why(kind, digits):
    make, why = NOT_FOOLED[kind]
    net, x = make_net(make, dtype=torch.float32), digits[0][:20].float()
    seen = warned(lambda: margins(net, x, batch_size=10, progress=False))
    assert len(seen) == 1 and "no sample changed its class" in seen[0] and why in seen[0]


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_nets_give_no_warning(kind, digits):
    net, x, y = make_net(HEALTHY[kind], dtype=torch.float32), digits[0][:20].float(), digits[1][:20] % 2
    assert warned(lambda: [make()(net, x, y).backward() for make in REGULARISERS.values()]) == []
    assert warned(lambda: margins(net, (x, y), progress=False)) == []


def test_a_warning_points_at_the_callers_line():
    with pytest.warns(UserWarning) as seen:
        AMM()(linear(10, weight=0.0), torch.ones(2, 64), torch.tensor([0, 1]))
        margins(linear(10, weight=0.0), torch.ones(2, 64), progress=False)
    assert [one.filename for one in seen] == [__file__, __file__]


# ---- precisions and labels


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["mlp", *TRANSFORMERS])
def test_a_model_of_another_precision_than_the_data_is_an_error_that_says_so(kind, dtype, digits):
    net, x = make_net({"mlp": mlp, **TRANSFORMERS}[kind], dtype=dtype), digits[0][:4].float()
    for call in (
        deepfool,
        tight,
        lambda *args: AMM()(*args, digits[1][:4]),
        lambda *args: margins(*args, progress=False),
    ):
        with pytest.raises(
            TypeError, match=f"x is torch.float32, the model's weights are {dtype}: convert one of them"
        ):
            call(net, x)


LABELS = {
    "int32": lambda y: y.int(),
    "uint8": lambda y: y.byte(),
    "column": lambda y: y.view(-1, 1),
    "0. or 1.": lambda y: y.float(),
    "column of 0. or 1.": lambda y: y.double().view(-1, 1),
    "bool": lambda y: y.bool(),
}


@pytest.mark.parametrize("classes", [1, 2, 10])
@pytest.mark.parametrize("form", LABELS)
def test_labels_of_any_form_mean_the_same(form, classes, digits):
    net, x, y = make_net(lambda: linear(classes, bias=0.0), dtype=torch.float32), digits[0][:20].float(), digits[1][:20]
    y = y % 2
    given = LABELS[form](y)
    if classes > 2 and given.is_floating_point():
        for call in (deepfool, AMM()):
            with pytest.raises(TypeError, match="labels must be int64 class indices, got torch.float"):
                call(net, x, given)
        return
    assert all(AMM(aggregation)(net, x, given) == AMM(aggregation)(net, x, y) for aggregation in ("min", "avg"))
    assert torch.equal(deepfool(net, x, given).norm, deepfool(net, x, y).norm)
    assert torch.equal(margins(net, (x, given), progress=False).correct, margins(net, (x, y), progress=False).correct)


@pytest.mark.parametrize("y", [[0.5, 1.0], [0.0, torch.nan]])
def test_labels_that_are_no_class_are_refused(y):
    net, x, y = linear(1), torch.ones(2, 64), torch.tensor(y)
    for call in (deepfool, AMM(), lambda net, x, y: margins(net, (x, y), progress=False)):
        with pytest.raises(TypeError, match="labels must be int64 class indices, got torch.float32"):
            call(net, x, y)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_tokens_are_refused(dtype):
    net = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(32, 3))
    tokens, y = torch.arange(16, dtype=dtype).view(2, 8) % 10, torch.tensor([0, 1])
    for call in (deepfool, AMM(), lambda net, x, y: margins(net, (x, y), progress=False)):
        with pytest.raises(
            TypeError, match=f"floating-point tensor, got {dtype}; tokens have no margin, embeddings do"
        ):
            call(net, tokens, y)


@pytest.mark.parametrize(
    "x, message",
    [
        (X.numpy(), "x must be a tensor, got ndarray"),
        (X.tolist(), "x must be a tensor, got list"),
        (X.to(torch.complex64), "floating-point tensor, got torch.complex64$"),
        (X.to_sparse(), "dense tensor with values, got torch.sparse_coo on device cpu"),
        (X.to("meta"), "dense tensor with values, got torch.strided on device meta"),
    ],
    ids=["numpy", "list", "complex", "sparse", "meta"],
)
def test_what_holds_no_real_numbers_is_refused(x, message):
    net = linear(2)
    for call in (deepfool, tight, lambda net, x: AMM()(net, x, Y)):
        with pytest.raises(TypeError, match=message):
            call(net, x)


@pytest.mark.parametrize("y, given", [(Y.tolist(), "list"), (Y.numpy(), "ndarray")])
def test_labels_that_are_no_tensor_are_refused(y, given):
    for call in (deepfool, AMM(), Elsayed()):
        with pytest.raises(TypeError, match=f"labels must be a tensor, got {given}"):
            call(linear(2), X, y)


# ---- kept whole


class Holder(nn.Module):
    """A model that brings its regulariser along."""

    def __init__(self, net, regulariser):
        super().__init__()
        self.net, self.regulariser = net, regulariser

    def forward(self, x):
        return self.net(x)


def saved_and_loaded(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "deepcopy": copy.deepcopy,
    "torch.save": saved_and_loaded,
}


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize(
    "make", [AMM, lambda: AMM("avg", "inv"), lambda: AMM(shrinkage="lin"), Elsayed, Refined], ids=range(5)
)
def test_a_regulariser_and_a_model_that_holds_one_survive_a_copy(make, copied, called, digits):
    net = make_net(mlp)
    x, y = batch(net, digits, dtype=torch.float64)
    model = Holder(net, make())
    if called:
        model.regulariser(model, x, y).backward()
    expected = make()(net, x, y)
    other, alone = COPIES[copied](model), COPIES[copied](model.regulariser)
    assert alone(net, x, y) == expected == other.regulariser(other, x, y)
    assert str(other) == str(model) and model.regulariser(model, x, y) == expected
    assert_same(gradients(other.regulariser(other, x, y), other), gradients(expected, net))
