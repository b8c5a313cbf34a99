#!/usr/bin/env python3
"""Writes grad_scaler.txt: the scale after each step of torch.amp.GradScaler on a row of good and overflowing steps.

A line: init growth backoff interval : steps (g good, i infinite) : scales : growth trackers
"""
import random
import sys

import torch

random.seed(1206)
lines = []
for init, growth, backoff, interval in [(65536., 2., .5, 2), (8., 3., .25, 3), (1., 2., .5, 1), (2.**-120, 2., .5, 4), (2.**127, 2., .5, 1)]:
    scaler = torch.amp.GradScaler("cpu", init_scale=init, growth_factor=growth, backoff_factor=backoff, growth_interval=interval)
    p = torch.nn.Parameter(torch.ones(3))
    opt = torch.optim.SGD([p], lr=0.)
    steps, scales, trackers = "", [], []
    for _ in range(24):
        kind = random.choice("gggi")
        opt.zero_grad()
        loss = (p * (float("inf") if kind == "i" else 1e-30)).sum()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        steps += kind
        scales.append(repr(scaler.get_scale()))
        trackers.append(str(scaler.state_dict()["_growth_tracker"]))
    lines.append(f"{init!r} {growth} {backoff} {interval} : {steps} : {' '.join(scales)} : {' '.join(trackers)}")
open(sys.argv[1] if len(sys.argv) > 1 else "grad_scaler.txt", "w").write("\n".join(lines) + "\n")
