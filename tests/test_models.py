"""Facts about the architectures: sizes of the papers, shapes, initialisation."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ammlib import AMM, MODELS, load_data, make_model
from ammlib.data.registry import DATASETS
from ammlib.data.vision import torchvision
from ammlib.margin.classifier import as_classes
from ammlib.models.layers import Centre, OptionA
from ammlib.models.weights import weights_digest
from ammlib.training import recipes
from ammlib.training.device import placed
from ammlib.training.prepare import batch_norms, set_mode, trained_parameters

PARAMETERS = {
    ("mnist", "mlp"): 1_276_810,
    ("mnist", "lenet"): 431_080,
    ("mnist", "liunet"): 484_554,
    # By hand: (75 + 1) 32 + (800 + 1) 32 + (800 + 1) 64 + (1024 + 1) 64 + (64 + 1) 10
    ("cifar10", "lenet"): 145_578,
    # 14,592 + 30,880 + 15,456; 460,992 + 37,056 + 37,056; 331,968 + 37,056 + 1,930
    ("cifar10", "nin"): 966_986,
    # A convolution with its group norm has 9 in out + 3 out; then (2048 + 1) 256 + (256 + 1) 10
    ("cifar10", "liunet"): 1_537_034,
    ("cifar100", "liunet"): 9_346_340,
    ("cifar10", "resnet20"): 269_722,
    ("cifar10", "resnet56"): 853_018,
    # 464; a stage of width w with i inputs: 5 i w + 13 w² + 20 w, and eight times 17 w² + 12 w; (256 + 1) 10
    ("cifar10", "resnet56_bottleneck"): 869_530,
    # 432; a layer or transition with i inputs: 110 i or (i + 2) i, from 16 to 160, 304, 448; 2 x 448; (448 + 1) 10
    ("cifar10", "densenet40"): 1_019_722,
    ("imagenet", "resnet18"): 11_689_512,
    ("imagenet", "resnet50"): 25_557_032,
    # A block of width w adds w²/8 + 17 w/16
    ("imagenet", "senet50"): 28_088_024,
}
# The data set that stands for a family, and a batch of its images, small where the nets are large.
BATCHES = {
    "mnist": ("mnist", (8, 1, 28, 28)),
    "cifar": ("cifar10", (4, 3, 32, 32)),
    "imagenet": ("imagenet", (2, 3, 64, 64)),
    "digits": ("digits", (8, 1, 8, 8)),
    "toy": ("toy", (8, 2, 1, 1)),
}


def outline(*args, **options):
    """A model without values, made in no time."""
    with torch.device("meta"):
        return make_model(*args, **options)


def modules(model, kind):
    return [module for module in model.modules() if isinstance(module, kind)]


@pytest.mark.parametrize(("dataset", "arch"), PARAMETERS)
def test_number_of_parameters(dataset, arch):
    assert sum(p.numel() for p in outline(dataset, arch).parameters()) == PARAMETERS[dataset, arch]


@pytest.mark.parametrize(
    ("dataset", "arch", "parameters"),
    [  # beside option A: 16 x 32 + 2 x 32 and 32 x 64 + 2 x 64 of the projections, and (64 + 1) 100 for 100 classes
        ("cifar10", "resnet20", 272_474),
        ("cifar10", "resnet56", 855_770),
        ("cifar100", "resnet20", 278_324),
        ("cifar100", "resnet56", 861_620),
    ],
)
def test_number_of_parameters_with_shortcuts_of_option_b(dataset, arch, parameters):
    assert sum(p.numel() for p in outline(dataset, arch, shortcut="B").parameters()) == parameters


def test_an_unknown_shortcut_lists_the_choices():
    with pytest.raises(ValueError, match="unknown shortcut 'C'; choose from A, B"):
        outline("cifar10", "resnet20", shortcut="C")


@pytest.mark.parametrize(("family", "arch"), [(family, arch) for family, archs in MODELS.items() for arch in archs])
def test_one_amm_step_gives_finite_gradients_for_every_parameter(family, arch):
    torch.manual_seed(0)
    dataset, shape = BATCHES[family]
    model, x, amm = make_model(dataset, arch), torch.rand(shape), AMM(num_rivals=3)
    for norm in batch_norms(model):
        norm.momentum = 1.0
    model(x)  # batch norm gets its statistics: with none, deep residual nets are too wild for the attack
    logits = model.eval()(x)
    y = as_classes(logits.detach()).argmax(1)
    assert logits.shape == (len(x), 1 if family == "toy" else DATASETS[dataset].num_classes)
    (F.cross_entropy(as_classes(logits), y) + amm(model, x, y, logits=logits)).backward()
    assert amm.last.kept > 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_every_recipe_has_its_architecture():
    assert set(DATASETS) == set(recipes.BY_DATASET)
    for dataset, entry in DATASETS.items():
        family = entry.family
        assert family == recipes.BY_DATASET[dataset]["family"]
        assert set(recipes.SCHEDULES[dataset]) <= set(MODELS[family])


@pytest.mark.parametrize(("dataset", "arch"), [("cifar100", "nin"), ("cifar100", "lenet"), ("svhn", "lenet")])
def test_there_are_as_many_logits_as_classes_of_the_data_or_as_asked_for(dataset, arch):
    x = torch.rand(2, 3, 32, 32)
    assert make_model(dataset, arch)(x).shape == (2, DATASETS[dataset].num_classes)
    assert make_model(dataset, arch, num_classes=7)(x).shape == (2, 7)


@pytest.mark.parametrize(
    ("arch", "layers"),
    [("lenet", 5), ("nin", 9), ("liunet", 15), ("resnet20", 20), ("resnet56", 56), ("densenet40", 40)],
)
def test_number_of_weight_layers(arch, layers):
    assert len(modules(outline("cifar10", arch), nn.Conv2d | nn.Linear)) == layers


def test_bottleneck_resnet56_of_the_authors_code_has_83_layers_and_3_projections():
    assert len(modules(outline("cifar10", "resnet56_bottleneck"), nn.Conv2d | nn.Linear)) == 83 + 3


@pytest.mark.parametrize(
    ("dataset", "groups"),
    [("mnist", [2] * 10), ("cifar10", [2] * 5 + [3] * 4 + [4] * 4), ("cifar100", [3] * 5 + [6] * 4 + [12] * 4)],
)
def test_group_norm_of_liunet_has_32_channels_in_a_group_or_as_many_groups_as_asked_for(dataset, groups):
    norms = modules(outline(dataset, "liunet"), nn.GroupNorm)
    assert [norm.num_groups for norm in norms] == groups
    assert all(norm.num_channels == 32 * norm.num_groups for norm in norms)
    assert {norm.num_groups for norm in modules(outline(dataset, "liunet", groups=16), nn.GroupNorm)} == {16}


def test_the_wide_liunet_is_for_more_than_10_classes_unless_said():
    first = {wide: outline("cifar10", "liunet", 100, wide=wide)[1][0].out_channels for wide in (None, True, False)}
    assert first == {None: 96, True: 96, False: 64}


# ---- ResNets


def test_shortcuts_of_option_a_subsample_and_pad_without_parameters():
    shortcuts = modules(outline("cifar10", "resnet20"), OptionA)
    x = torch.rand(2, 16, 8, 8)
    out = shortcuts[0](x)
    assert len(shortcuts) == 2 and not any(list(shortcut.parameters()) for shortcut in shortcuts)
    assert out.shape == (2, 32, 4, 4)
    assert torch.equal(out[:, :16], x[:, :, ::2, ::2]) and not out[:, 16:].any()


def assert_equals_torchvision(model, arch, weights):
    """With these weights torchvision's net gives the model's logits, and it takes exactly these."""
    with torch.device("meta"):
        theirs = getattr(torchvision.models, arch)().eval()
    theirs.load_state_dict(weights, strict=True, assign=True)
    x = torch.rand(2, 3, 64, 64)
    normalise = torchvision.transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), theirs(normalise(x)))


@pytest.mark.parametrize("arch", ["resnet18", "resnet50"])
def test_imagenet_resnets_are_those_of_torchvision_with_normalisation_inside(arch):
    model = make_model("imagenet", arch)
    assert_equals_torchvision(model, arch, model[1].state_dict())


def test_senet50_with_all_channel_weights_at_one_is_resnet50():
    model = make_model("imagenet", "senet50")
    blocks = modules(model, torchvision.ops.SqueezeExcitation)
    widths = [256] * 3 + [512] * 4 + [1024] * 6 + [2048] * 3
    assert [(se.fc1.out_channels, se.fc2.out_channels) for se in blocks] == [(w // 16, w) for w in widths]
    for se in blocks:
        nn.init.zeros_(se.fc2.weight)
        nn.init.constant_(se.fc2.bias, 100.0)
    weights = {name.replace("bn3.0", "bn3"): value for name, value in model[1].state_dict().items()}
    weights = {name: value for name, value in weights.items() if "bn3.1" not in name}
    assert_equals_torchvision(model, "resnet50", weights)


@pytest.mark.parametrize(("dataset", "arch", "size"), [("cifar10", "resnet20", 32), ("imagenet", "resnet18", 64)])
def test_a_step_with_frozen_batch_norm_changes_all_but_its_statistics_and_weights(dataset, arch, size):
    torch.manual_seed(0)
    model = make_model(dataset, arch)
    frozen = {id(t) for norm in batch_norms(model) for t in norm.state_dict(keep_vars=True).values()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(trained_parameters(model, freeze_bn=True), lr=1e-3)
    set_mode(model, freeze_bn=True)
    x, y = torch.rand(2, 3, size, size), torch.tensor([3, 7])
    logits = model(x)
    (F.cross_entropy(logits, y) + AMM(steps=1)(model, x, y, logits=logits)).backward()
    optimizer.step()
    after = model.state_dict(keep_vars=True)
    assert len(frozen) == 5 * len(batch_norms(model)) > 0
    for name, value in after.items():
        if id(value) in frozen or isinstance(model[int(name[0])], Centre):
            assert torch.equal(value, before[name]), name
        else:
            assert not torch.equal(value, before[name]), name


@pytest.mark.parametrize("arch", ["lenet", "resnet20"])
def test_nets_that_convolve_have_channels_last_on_a_cpu_and_the_same_numbers(arch):
    torch.manual_seed(0)
    usual, x, y = make_model("cifar10", arch).double().eval(), torch.rand(20, 3, 32, 32).double(), torch.arange(20) % 10
    other = placed(copy.deepcopy(usual), torch.device("cpu"))
    terms = [AMM(lam=1.0)(model, x, y) for model in (usual, other)]
    for term in terms:
        term.backward()
    torch.testing.assert_close(*terms)
    for a, b in zip(usual.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
        assert b.ndim < 4 or min(b.shape[1:]) == 1 or not b.is_contiguous()
    assert weights_digest(usual.state_dict()) == weights_digest(other.state_dict())


# ---- first layer and initialisation


def test_images_enter_in_0_to_1_and_the_mean_is_subtracted_inside():
    model = make_model("mnist", "mlp")
    assert isinstance(model[0], Centre)
    assert torch.allclose(model[0](torch.full((1, 1, 2, 2), 0.1307)), torch.zeros(1, 1, 2, 2), atol=1e-7)


@pytest.mark.parametrize("dataset", ["digits", "digits32"])
def test_the_mean_is_that_of_the_training_images(dataset):
    x, _ = load_data(dataset).train
    assert DATASETS[dataset].mean == pytest.approx(x.mean((0, 2, 3)).tolist(), abs=1e-4)


def test_initialisation_is_kaiming_normal_by_fan_in_with_zero_bias():
    torch.manual_seed(0)
    layer = make_model("mnist", "mlp")[1][1]
    assert layer.weight.std().item() == pytest.approx((2 / 784) ** 0.5, rel=0.01)
    assert not layer.bias.any()


def test_unknown_names_list_the_choices():
    with pytest.raises(ValueError, match="mlp, lenet, liunet"):
        make_model("mnist", "lenett")
    with pytest.raises(ValueError, match="mnist, cifar10"):
        make_model("mnits", "mlp")
