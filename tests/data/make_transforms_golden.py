#!/usr/bin/env python3
"""Writes transforms.pth: what torchvision's transforms make of a few small pictures."""
import sys

import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

if __name__ == "__main__":
    pictures = torch.randint(0, 256, (3, 3, 16, 12), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    floats = pictures.float() / 255
    golden = {"pictures": pictures}
    for name, x in (("uint8", pictures), ("float", floats)):
        golden[f"{name} up"] = F.resize(x, [20, 30], antialias=True)
        golden[f"{name} down"] = F.resize(x, [7, 5], antialias=True)
        golden[f"{name} shorter"] = F.resize(x, [8], antialias=True)
        golden[f"{name} aliased"] = F.resize(x, [7, 5], antialias=False)
    golden["center"] = F.center_crop(pictures, [5, 7])
    golden["center larger"] = F.center_crop(pictures, [21, 9])
    golden["flip"] = F.horizontal_flip(pictures)
    golden["normalize"] = F.normalize(floats, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    golden["brightness"] = F.adjust_brightness(floats, 1.3)
    golden["contrast"] = F.adjust_contrast(floats, 0.6)
    golden["saturation"] = F.adjust_saturation(floats, 1.7)
    golden["hue"] = F.adjust_hue(floats, 0.13)
    golden["hue back"] = F.adjust_hue(floats, -0.4)
    torch.manual_seed(2)
    erased = v2.RandomErasing(p=1, scale=(0.2, 0.2), ratio=(1.5, 1.5), value=0)(torch.ones(1, 3, 16, 12))
    golden["erased"] = int((erased == 0).sum())
    torch.save(golden, sys.argv[1] if len(sys.argv) > 1 else "transforms.pth")
