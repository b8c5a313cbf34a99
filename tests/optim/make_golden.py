#!/usr/bin/env python3
"""Writes clip.pth: what torch.nn.utils.clip_grad_norm_ makes of some gradients.

A list of {gradients: [tensor, ...], type, max_norm, norm, clipped: [tensor, ...]}.
"""
import os

import torch

torch.manual_seed(1206)
cases = []
for norm_type in (2.0, 1.0, 3.0, 0.5, float("inf")):
    for max_norm in (1e-3, 1.0, 1e9):
        for scale in (1.0, 1e-20, 1e15):
            gradients = [scale * torch.randn(shape) for shape in ((3, 4), (), (7,), (2, 2, 2))]
            parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients] + [torch.nn.Parameter(torch.ones(2))]
            for p, g in zip(parameters, gradients):
                p.grad = g.clone()
            norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
            cases.append({"gradients": gradients, "type": norm_type, "max_norm": max_norm, "norm": norm,
                          "clipped": [p.grad for p in parameters[:-1]]})
torch.save(cases, os.path.join(os.path.dirname(os.path.abspath(__file__)), "clip.pth"))
