"""Facts about batches, subsets and label noise: a naive loop over images, and what a seed fixes."""

import pytest
import torch
import torch.nn.functional as F

from ammlib.data.batches import Batches, half_of, noisy_labels, subset, validation_split


def images(n=23, channels=3, size=32):
    x = torch.randint(0, 256, (n, channels, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(n)  # labels are positions: they tell which image a row is


def crop_and_flip_one_by_one(enlarged, batches, epoch):
    """The same draws, applied to one image after the other with plain slices."""
    size = batches.windows.shape[-1]
    for i, down, right, mirror in zip(*(draw.tolist() for draw in batches._draw(epoch)), strict=True):
        image = enlarged[i, :, down : down + size, right : right + size]
        yield (torch.flip(image, [2]) if mirror and batches.flip else image).float() / 255


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("crop, margin", [(None, 0), ("pad4", 8), ("resize36", 4)])
def test_crop_and_flip_equal_a_loop_over_images(crop, margin, flip):
    x, y = images(200)
    enlarged = {
        None: x,
        "pad4": F.pad(x, (4, 4, 4, 4)),
        "resize36": torch.cat([F.interpolate(i[None].float(), (36, 36), mode="bilinear") for i in x]).round().byte(),
    }[crop]
    batches = Batches(x, y, 64, seed=3, crop=crop, flip=flip)
    found = torch.cat([xb for xb, _ in batches.epoch(2)])
    assert torch.equal(found, torch.stack(list(crop_and_flip_one_by_one(enlarged, batches, 2))))
    _, down, right, mirror = batches._draw(2)
    for draw, highest in ((down, margin), (right, margin), (mirror.int(), 1)):
        assert draw.unique().tolist() == list(range(highest + 1))  # every offset occurs and none lies outside


def test_flips_are_half_and_crops_uniform():
    x, y = images(20000, channels=1, size=2)
    _, down, right, mirror = Batches(x, y, 100, seed=0, crop="pad4", flip=True)._draw(0)
    assert abs(mirror.float().mean() - 0.5) < 0.02
    counts = torch.bincount(down * 9 + right, minlength=81) / 20000
    assert (counts - 1 / 81).abs().max() < 0.004


def test_an_epoch_shows_every_image_once_and_keeps_the_last_incomplete_batch():
    x, y = images(23)
    batches = Batches(x, y, 10, seed=0)
    parts = list(batches.epoch(0))
    assert [len(yb) for _, yb in parts] == [10, 10, 3] and len(batches) == 3
    order = torch.cat([yb for _, yb in parts])
    assert sorted(order.tolist()) == list(range(23)) and order.tolist() != list(range(23))
    xb = torch.cat([xb for xb, _ in parts])
    assert torch.equal(xb, x[order].float() / 255) and xb.dtype == torch.float32
    assert xb.min() >= 0 and xb.max() <= 1


def same(first, second):
    pairs = zip(first, second, strict=True)
    return all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in pairs)


def test_batches_are_a_function_of_seed_epoch_and_step():
    x, y = images(50)
    first, again, other = (Batches(x, y, 8, seed, crop="pad4", flip=True) for seed in (0, 0, 1))
    later = list(first.epoch(7))
    torch.manual_seed(123)
    state = torch.get_rng_state()
    assert same(later, again.epoch(7))  # also without the epochs before
    assert torch.equal(state, torch.get_rng_state())
    for start in range(len(first) + 1):
        assert same(later[start:], again.epoch(7, start=start))
    assert not same(later, first.epoch(8)) and not same(later, other.epoch(7))


def test_options_do_not_change_the_order():
    x, y = images(50)
    orders = [
        torch.cat([yb for _, yb in Batches(x, y, 8, 0, crop=crop, flip=flip).epoch(0)])
        for crop, flip in ((None, False), ("pad4", True), ("resize36", False))
    ]
    assert torch.equal(orders[0], orders[1]) and torch.equal(orders[0], orders[2])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"crop": "pad5"}, "choices: None, 'resize36', 'pad4'"),
        ({"batch_size": 0}, "at least 1"),
        ({"x": images()[0].double()}, "uint8"),
        ({"y": torch.zeros(5)}, "23 images"),
        ({"x": images(size=28)[0], "crop": "resize36"}, "28 x 28"),
    ],
)
def test_batches_reject(arguments, message):
    x, y = images(23)
    with pytest.raises(ValueError, match=message):
        Batches(**{"x": x, "y": y, "batch_size": 4, "seed": 0} | arguments)


def test_a_start_past_the_end_is_an_error():
    with pytest.raises(ValueError, match=r"0 \.\.\. 3"):
        next(Batches(*images(23), 10, seed=0).epoch(0, start=4))


# ---- choices of images and labels


def test_subsets_are_exact_nested_and_fixed_by_the_seed():
    small, large = subset(60000, 5000, seed=0), subset(60000, 10000, seed=0)
    assert len(small.unique()) == 5000 and torch.equal(small, subset(60000, 5000, seed=0))
    assert torch.isin(small, large).all() and torch.equal(small, small.sort().values)
    assert not torch.equal(small, subset(60000, 5000, seed=1))
    assert torch.equal(subset(100, 100, seed=0), torch.arange(100))
    with pytest.raises(ValueError, match="asked for 101"):
        subset(100, 101, seed=0)


def test_the_halves_for_search_and_report_are_fixed_and_have_nothing_in_common():
    search, report = (half_of(10_001, which) for which in ("search", "report"))
    assert (len(search), len(report)) == (5001, 5000)
    assert torch.equal(torch.cat([search, report]).sort().values, torch.arange(10_001))
    assert half_of(10, "search").tolist() == [1, 5, 6, 8, 9]  # stored runs rely on it


def test_validation_split_is_a_partition():
    train, val = validation_split(60000, seed=0)
    assert len(val) == 5000 and torch.equal(torch.cat([train, val]).sort().values, torch.arange(60000))
    assert torch.equal(val, validation_split(60000, seed=0)[1])
    assert not torch.equal(val, validation_split(60000, seed=1)[1])


@pytest.mark.parametrize("n_clean", [0, 5000, 20000])
def test_noise_leaves_exactly_n_clean_labels(n_clean):
    y = torch.full((20000,), 99)  # a label that noise never gives
    noisy = noisy_labels(y, n_clean, num_classes=10, seed=0)
    assert (noisy == 99).sum() == n_clean and (y == 99).all()
    assert torch.equal(noisy, noisy_labels(y, n_clean, 10, seed=0))
    if n_clean < 20000:
        frequencies = torch.bincount(noisy[noisy != 99], minlength=10) / (20000 - n_clean)
        assert len(frequencies) == 10 and (frequencies - 0.1).abs().max() < 0.015
        assert not torch.equal(noisy, noisy_labels(y, n_clean, 10, seed=1))
