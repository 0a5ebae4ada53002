"""The networks of the ImageNet experiments (section 4.1.3), from 3 x 224 x 224 images to logits."""

from typing import Any

from torch import nn


def resnet(depth: int, num_classes: int = 1000) -> Any:
    """torchvision's ResNet: 11,689,512 parameters with depth 18, 25,557,032 with 50."""
    from ammlib.data.vision import torchvision  # here because it takes seconds, and the other nets do without

    return getattr(torchvision.models, f"resnet{depth}")(num_classes=num_classes)


def resnet50_caffe(num_classes: int = 1000) -> nn.Module:
    """He et al.'s original ResNet-50: a stride is in the first 1 x 1 convolution of a block, not in the 3 x 3."""
    net = resnet(50, num_classes)
    for block in (layer[0] for layer in (net.layer2, net.layer3, net.layer4)):
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    return net


def senet50(num_classes: int = 1000, reduction: int = 16) -> nn.Module:
    """SE-ResNet-50: Hu et al.'s channel weights at the end of each branch of a ResNet-50; 28,088,024 parameters."""
    from ammlib.data.vision import torchvision

    net = resnet(50, num_classes)
    for block in net.modules():
        if isinstance(block, torchvision.models.resnet.Bottleneck):
            width = block.bn3.num_features
            block.bn3 = nn.Sequential(block.bn3, torchvision.ops.SqueezeExcitation(width, width // reduction))
    return net
