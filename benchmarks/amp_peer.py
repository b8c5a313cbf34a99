#!/usr/bin/env python3
"""Python's side of amp.cc: the same subjects, one JSON line."""
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def parameters(small):
    sizes = [256 if small or i % 4 > 1 else 147456 if i % 4 == 0 else 65536 for i in range(160)]
    result = [nn.Parameter(torch.ones(size, device=DEVICE)) for size in sizes]
    for p in result:
        p.grad = torch.ones_like(p)
    return result


def scaler_subjects():
    for small in (False, True):
        optimizer = torch.optim.SGD(parameters(small), lr=0.)
        scaler = torch.amp.GradScaler(DEVICE, init_scale=1.)
        scaler.scale(torch.ones((), device=DEVICE))
        kind = "small" if small else "large"
        all_parameters = optimizer.param_groups[0]["params"]

        def step(scaler=scaler, optimizer=optimizer):
            scaler.step(optimizer)
            scaler.update()

        yield f"unscale/{kind}", lambda s=scaler: s.update(1.), lambda s=scaler, o=optimizer: s.unscale_(o), 50
        yield f"clip/{kind}", lambda: None, lambda p=all_parameters: nn.utils.clip_grad_norm_(p, 1e9), 50
        if small:
            yield f"step/{kind}", lambda s=scaler: s.update(1.), step, 50


def conv_net(name, dtype):
    block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, stride=2, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
                                       nn.MaxPool2d(2, 2))
    model = nn.Sequential(block(1, 32), block(32, 64), nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(DEVICE, enabled=dtype == torch.float16)
    x, y = torch.randn(128, 1, 28, 28, device=DEVICE), torch.randint(10, (128,), device=DEVICE)

    def step():
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype or torch.bfloat16, enabled=dtype is not None):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return f"conv_net/{name}", lambda: None, step, 20


def wait():
    if CUDA:
        torch.cuda.synchronize()


subjects = [*scaler_subjects(), conv_net("float", None), conv_net("bf16", torch.bfloat16)]
if CUDA:
    subjects.append(conv_net("fp16", torch.float16))
seconds = {name: [] for name, *_ in subjects}
for _ in range(5):
    for name, prepare, run, times in subjects:
        for i in range(times + 5):
            prepare()
            wait()
            begin = time.perf_counter()
            run()
            wait()
            if i >= 5:
                seconds[name].append(time.perf_counter() - begin)
print(json.dumps({"device": "CUDA" if CUDA else "CPU", **{name: statistics.median(each) for name, each in seconds.items()}}))
