#!/usr/bin/env python3
"""A training step with our reducers, with c10d::Reducer and in Python, alternating, with the ratios.

  ./bazelw run //benchmarks:train_step [-- --rounds=5]

In each round every program runs once; within a program the subjects take turns (benchmarks/train_step.cc). One thread per
rank everywhere. Python's PyTorch of the same version is installed by install_python_peer.sh at the first run.
"""
import os
import statistics
import sys

import compare

RANK, LAUNCHER, PEER = "benchmarks/train_step_rank", "launch/lockstep_run", "benchmarks/train_step_peer.py"
BLOCKS = 3
PAIRS = [("mlp", "the MLP", 20), ("conv_net", "ConvNet", 40), ("resnet18", "ResNet-18", 8)]
TENSORS = [10, 100, 1000, 10000]
WORLDS = [1, 2, 4, 8]


ENV = compare.environment()


def run(command):
    return compare.json_lines(command, ENV)[0]


def ours(ranks, model, steps, *subjects):
    command = [RANK, model, str(BLOCKS), str(steps), *subjects]
    return run(command if ranks == 1 else [LAUNCHER, "--standalone", "--prefix=off", f"--nproc_per_node={ranks}", *command])


def main():
    rounds = compare.rounds()
    python = compare.python_peer()
    results = {}

    def take(key, measured):
        for subject, seconds in measured.items():
            results.setdefault((*key, subject), []).append(seconds)

    for round_ in range(rounds):
        for model, _, steps in PAIRS:
            take((model, 1), ours(1, model, steps, "plain", "ours/alone"))
            take((model, 2), ours(2, model, steps, "plain", "ours/shm", "torch/shm", "ours/gloo", "torch/gloo", "after/shm"))
        take(("mlp", 2), run([python, PEER, "2", str(BLOCKS), "20"]))
        for count in TENSORS:
            take((f"tensors:{count}", 2), ours(2, f"tensors:{count}", 3, "plain", "ours/shm", "torch/shm", "ours/gloo", "torch/gloo"))
        for world in WORLDS:
            subjects = ["plain", "ours/alone"] if world == 1 else ["plain", "ours/shm", "ours/gloo", "torch/gloo"]
            take(("mlp, worlds", world), ours(world, "mlp", 10, *subjects))
        print(f"round {round_ + 1} of {rounds} done", file=sys.stderr, flush=True)
    median = {key: statistics.median(values) for key, values in results.items()}

    def cell(*key):
        return f"{median[key] * 1e3:.2f} ms" if key in median else "–"

    subjects = ["plain", "ours/shm", "torch/shm", "after/shm", "ours/gloo", "torch/gloo", "python/gloo"]
    print(f"\nA step, medians of {rounds} rounds; two ranks, but for the first column:\n")
    print("| model | 1 rank | 2 uncoupled | " + " | ".join(subjects[1:]) + " |")
    print("| --- |" + " --- |" * (len(subjects) + 1))
    for model, name, _ in PAIRS:
        print("|", " | ".join([name, cell(model, 1, "plain")] + [cell(model, 2, s) for s in subjects]), "|")
    print("\nA million numbers in N tensors, 2 ranks:\n")
    print("| tensors | uncoupled | ours/shm | torch/shm | ours/gloo | torch/gloo |\n| --- | --- | --- | --- | --- | --- |")
    for count in TENSORS:
        print("|", " | ".join([str(count)] + [cell(f"tensors:{count}", 2, s) for s in
                                              ("plain", "ours/shm", "torch/shm", "ours/gloo", "torch/gloo")]), "|")
    print(f"\nThe MLP by number of ranks, on {os.cpu_count()} cores:\n")
    print("| ranks | uncoupled | ours/shm | ours/gloo | torch/gloo |\n| --- | --- | --- | --- | --- |")
    for world in WORLDS:
        print("|", " | ".join([str(world), cell("mlp, worlds", world, "plain")] +
                              [cell("mlp, worlds", world, s) for s in ("ours/shm", "ours/gloo", "torch/gloo")]), "|")
    print()

    compare.ratio("MLP, 2 ranks on shm / 1 rank", median["mlp", 2, "ours/shm"] / median["mlp", 1, "plain"], 1.3, at_most=True)
    compare.ratio("MLP, 2 uncoupled ranks / 1 rank (the machine's floor)", median["mlp", 2, "plain"] / median["mlp", 1, "plain"], 1.3,
          at_most=True)
    compare.ratio("MLP, 2 ranks, Python's DDP on Gloo / ours on shm", median["mlp", 2, "python/gloo"] / median["mlp", 2, "ours/shm"], 2.5)
    for model, name, _ in PAIRS:
        compare.ratio(f"{name}, 2 ranks on Gloo, c10d::Reducer / ours", median[model, 2, "torch/gloo"] / median[model, 2, "ours/gloo"], 0.95)
        compare.ratio(f"{name}, 1 rank, wrapped / plain", median[model, 1, "ours/alone"] / median[model, 1, "plain"], 1.02, at_most=True)


if __name__ == "__main__":
    main()
