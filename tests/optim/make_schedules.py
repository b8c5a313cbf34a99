#!/usr/bin/env python3
"""Writes schedules.json: the rates that schedules of torch.optim and transformers give, step by step.

A list of {options: as ScheduleOptions, optimizer, metrics: of the steps or null, rates: [[of a group, ...] of a step,
...], momenta: [of a step, ...] or null}. The groups' base rates are 0.1 and 0.03; rates[0] is that before any step.
"""
import json
import math
import os
import warnings

import torch
from torch.optim import lr_scheduler
from transformers import optimization

warnings.filterwarnings("ignore")
cases = []


def add(make, steps, metrics=None, optimizer="sgd", **options):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (0.1, 0.03)]
    o = torch.optim.SGD(groups, momentum=0.5) if optimizer == "sgd" else torch.optim.AdamW(groups)
    schedule = make(o)
    cycles = options["kind"] == "one_cycle" and options.get("cycle_momentum", True)
    rates, momenta = [], []
    for step in range(steps + 1):
        rates.append([group["lr"] for group in o.param_groups])
        momenta.append(o.param_groups[1]["momentum" if optimizer == "sgd" else "betas"])
        if optimizer != "sgd":
            momenta[-1] = momenta[-1][0]
        if step < steps:
            schedule.step(*([] if metrics is None else [metrics[step]]))
    cases.append({"options": options, "optimizer": optimizer, "metrics": metrics, "rates": rates,
                  "momenta": momenta if cycles else None})


for warmup in (0, 1, 10):
    add(lambda o: optimization.get_constant_schedule_with_warmup(o, warmup), 14, kind="constant", warmup_steps=warmup)
    for total in (4, 10, 30):
        add(lambda o: optimization.get_linear_schedule_with_warmup(o, warmup, total), 33, kind="linear",
            warmup_steps=warmup, total_steps=total)
        for cycles in (0.5, 1.0, 2.5):
            add(lambda o: optimization.get_cosine_schedule_with_warmup(o, warmup, total, cycles), 33, kind="cosine",
                warmup_steps=warmup, total_steps=total, num_cycles=cycles)
for size, gamma in ((1, 0.1), (3, 0.7), (50, 0.1)):
    add(lambda o: lr_scheduler.StepLR(o, size, gamma), 20, kind="step", step_size=size, gamma=gamma)
for milestones, gamma in (([1], 0.1), ([3, 5, 11], 0.5), ([4, 4, 9], 0.3)):
    add(lambda o: lr_scheduler.MultiStepLR(o, milestones, gamma), 14, kind="multi_step", milestones=milestones,
        gamma=gamma)
for gamma in (0.9, 1.0, 0.0):
    add(lambda o: lr_scheduler.ExponentialLR(o, gamma), 20, kind="exponential", gamma=gamma)
for total, power in ((1, 1.0), (12, 1.0), (12, 2.0), (12, 0.5)):
    add(lambda o: lr_scheduler.PolynomialLR(o, total, power), 15, kind="polynomial", total_steps=total, power=power)
for total, low in ((1, 0.0), (10, 0.0), (10, 0.05), (7, 0.001)):
    add(lambda o: lr_scheduler.CosineAnnealingLR(o, total, low), 30, kind="cosine_annealing", total_steps=total,
        min_lr=low)
for optimizer in ("sgd", "adamw"):
    for extra in ({}, {"anneal": "linear"}, {"three_phase": True}, {"three_phase": True, "anneal": "linear"},
                  {"cycle_momentum": False}, {"pct_start": 0.0}, {"pct_start": 1.0}, {"pct_start": 0.55},
                  {"base_momentum": 0.7, "max_momentum": 0.9, "div_factor": 10.0, "final_div_factor": 100.0}):
        for total in (1, 24):
            names = {"anneal_strategy" if key == "anneal" else key: value for key, value in extra.items()}
            if total == 1 and (extra.get("three_phase") or extra.get("pct_start") == 1.0):
                continue  # Python divides by zero here
            add(lambda o: lr_scheduler.OneCycleLR(o, 0.5, total, **names), total - 1, optimizer=optimizer,
                kind="one_cycle", total_steps=total, max_lr=0.5, **extra)
metrics = [1.0, 0.9, 0.9, 0.95, 0.9, 0.89995, 0.5, 0.6, math.nan, 0.5, 0.5, 0.5, 0.49, 0.7, 0.8, 0.8, 0.8, -1.0, -1.0, -1.05,
           -0.9, -0.9, -0.9, -0.9, -0.9, -0.9, math.inf, -math.inf, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
for mode in ("min", "max"):
    for threshold_mode, threshold in (("rel", 1e-4), ("abs", 0.02)):
        for patience, cooldown in ((0, 0), (2, 0), (1, 3)):
            for extra in ({"factor": 0.5}, {"factor": 0.1, "min_lr": 0.001}, {"factor": 0.1, "eps": 0.02}):
                add(lambda o: lr_scheduler.ReduceLROnPlateau(o, mode=mode, threshold_mode=threshold_mode,
                                                             threshold=threshold, patience=patience, cooldown=cooldown,
                                                             **extra),
                    len(metrics), metrics, kind="reduce_on_plateau", mode=mode, threshold_mode=threshold_mode,
                    threshold=threshold, patience=patience, cooldown=cooldown, **extra)
add(lambda o: lr_scheduler.ReduceLROnPlateau(o), len(metrics), metrics, kind="reduce_on_plateau")

for case in cases:  # JSON has no such numbers
    if case["metrics"] is not None:
        case["metrics"] = [m if math.isfinite(m) else str(m) for m in case["metrics"]]
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "schedules.json")
open(path, "w").write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
