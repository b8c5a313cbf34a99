#!/usr/bin/env python3
"""Writes hooks.pth: what Python's communication hooks make of known gradients, two ranks, six steps.

{hook: {"q": {parameter: its first Q}, "steps": [{parameter: gradient after backward}, …]}}

The gradient that a rank hands in is a formula of step, rank, parameter and element; see Gradient in
communication_hooks_test.cc.
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

# In this version batched_powerSGD_hook stops at an assertion, since it hands matrices to a function for batches of them.
orthogonalize = powerSGD_hook._orthogonalize
powerSGD_hook._orthogonalize = lambda m, epsilon=0: orthogonalize(m.unsqueeze(0) if m.dim() == 2 else m, epsilon)

SHAPES = {"a": (20, 15), "b": (12, 30), "bias": (10,), "conv": (8, 3, 3, 4)}
STEPS = 6


def gradient(step, rank, index, shape):
    n = torch.Size(shape).numel()
    i = torch.arange(n, dtype=torch.int64)
    return (((i * 7919 + (i * i) % 613 + rank * 104729 + step * 1299709 + index * 15485863) % 2003).double() / 1001 - 1).float().view(shape)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name, shape in SHAPES.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))

    def forward(self, step, rank):
        parts = [(p * gradient(step, rank, i, p.shape)).sum() for i, p in enumerate(self.parameters())]
        return sum(parts)


def run(rank, name, make):
    model = Model()
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=False)
    state, hook = make()
    drawn = []
    original = torch.randn
    torch.randn = lambda *a, **k: drawn.append(original(*a, **k)) or drawn[-1].clone()
    ddp.register_comm_hook(state, hook)
    steps = []
    for step in range(STEPS):
        ddp.zero_grad()
        ddp(step, rank).backward()
        steps.append({n: p.grad.clone() for n, p in model.named_parameters()})
    torch.randn = original
    q = {}
    for matrix in drawn:
        matrix = matrix.squeeze(0) if matrix.dim() == 3 else matrix
        names = [n for n, s in SHAPES.items() if torch.Size(s).numel() == s[0] * matrix.shape[0] and len(s) > 1]
        q.setdefault(names[0] if names else "bucket", matrix)
    return {"q": q, "steps": steps}


def main(rank, path):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29533"))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    power = lambda r, **k: lambda: (
        powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=r, start_powerSGD_iter=2, min_compression_rate=1, **k),
        powerSGD_hook.powerSGD_hook,
    )
    hooks = {
        "allreduce": lambda: (None, default_hooks.allreduce_hook),
        "fp16": lambda: (None, default_hooks.fp16_compress_hook),
        "bf16": lambda: (None, default_hooks.bf16_compress_hook),
        "power_sgd_1": power(1),
        "power_sgd_2": power(2),
        "power_sgd_4": power(4),
        "power_sgd_no_feedback": power(2, use_error_feedback=False),
        "power_sgd_batched": lambda: (power(1)()[0], powerSGD_hook.batched_powerSGD_hook),
    }
    result = {name: run(rank, name, make) for name, make in hooks.items()}
    if rank == 0:
        torch.save(result, path)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, args=(sys.argv[1] if len(sys.argv) > 1 else "hooks.pth",), nprocs=2)
