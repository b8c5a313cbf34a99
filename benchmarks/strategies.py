#!/usr/bin/env python3
"""MNIST's ConvNet trained in every way: images/s of 1, 2 and 4 workers with 16 to 1024 images each, so that one sees where
more workers stop paying, and Python's DistributedDataParallel and DataParallel beside them.

  ./bazelw run //benchmarks:strategies [-- --blocks=5]
"""
import statistics
import sys

import compare

RANK, PEER, LAUNCHER = "benchmarks/strategies_rank", "benchmarks/strategies_peer.py", "launch/lockstep_run"
ENV = compare.environment()
WORKERS = (1, 2, 4)
# How many steps are measured; each is also made once before.
STEPS = {16: 60, 64: 24, 256: 8, 1024: 3}
OURS = ("single", "data_parallel", "ddp", "zero1", "pipeline", "parameter_server", "async_parameter_server")
PYTHON = ("ddp", "data_parallel")


def exists(way, workers):
    if way == "single":
        return workers == 1
    return workers > 1 or way.endswith("parameter_server")


def ours(way, workers, batch):
    ranks = {"single": 1, "data_parallel": 1}.get(way, workers + (1 if way.endswith("parameter_server") else 0))
    return [LAUNCHER, "--standalone", f"--nproc_per_node={ranks}", "--prefix=off", RANK, way, str(workers), str(batch), str(STEPS[batch])]


def main():
    blocks = compare.rounds("blocks")
    python = compare.python_peer()
    commands = {}
    for workers in WORKERS:
        for batch in STEPS:
            for way in OURS:
                if exists(way, workers):
                    commands[way, workers, batch] = ours(way, workers, batch)
            for way in PYTHON:
                if workers > 1:
                    commands["Python " + way, workers, batch] = [python, PEER, way, str(workers), str(batch), str(STEPS[batch])]
    rates = {side: statistics.median(values) for (side, _), values in compare.alternate(blocks, commands, ENV).items()}

    print(f"\n{'images/s, all workers together':34}" + "".join(f"{'batch ' + str(batch):>13}" for batch in STEPS))
    for way in (*OURS, *("Python " + way for way in PYTHON)):
        for workers in WORKERS:
            if (way, workers, 16) in rates:
                name = f"{way}, {workers} worker{'s' if workers > 1 else ''}"
                print(f"{name:34}" + "".join(f"{rates[way, workers, batch]:13.0f}" for batch in STEPS))
    print()
    for workers in WORKERS[1:]:
        for batch in STEPS:
            compare.ratio(f"ddp, {workers} workers, batch {batch}, against Python's DistributedDataParallel",
                          rates["ddp", workers, batch] / rates["Python ddp", workers, batch], 1)
            compare.ratio(f"data_parallel, {workers} replicas, batch {batch}, against Python's DataParallel",
                          rates["data_parallel", workers, batch] / rates["Python data_parallel", workers, batch], 1)


if __name__ == "__main__":
    sys.exit(main())
