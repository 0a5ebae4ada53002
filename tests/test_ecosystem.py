"""AMM and margins of real timm and transformers models without weights (requirements-ecosystem.txt)."""

import pytest
import torch
import torch.nn.functional as F

import ammlib.data.vision  # noqa: F401  before timm, which imports torchvision
from ammlib import AMM, margins

pytestmark = pytest.mark.ecosystem


def timm_vit():
    timm = pytest.importorskip("timm", reason="pip install -r requirements-ecosystem.txt")
    return timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=32, num_classes=5)


def transformers_vit():
    transformers = pytest.importorskip("transformers", reason="pip install -r requirements-ecosystem.txt")
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=5, attn_implementation="sdpa")
    return transformers.ViTForImageClassification(config)


@pytest.mark.parametrize("make", [timm_vit, transformers_vit])
def test_amm_and_margins_of_a_vision_transformer_as_people_have_it(make):
    torch.manual_seed(0)
    model, x = make(), torch.rand(12, 3, 32, 32)
    for weight in (model.get_classifier() if make is timm_vit else model.classifier).parameters():
        torch.nn.init.normal_(weight, std=0.5)
    output = model.eval()(x)
    logits = getattr(output, "logits", output)
    y = torch.where(torch.arange(12) % 3 > 0, logits.argmax(1), 0)
    amm = AMM()
    term = amm(model.train(), x, y, logits=output)
    (F.cross_entropy(logits, y) + term).backward()
    assert term > 0 and amm.last.kept > 0
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    batch = {"pixel_values": x, "labels": y}
    found = margins(model, [batch], progress=False)
    assert found.success.all() and (found.norm > 0).all() and torch.equal(found.correct, logits.argmax(1) == y)
