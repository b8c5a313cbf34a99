#!/usr/bin/env python3
"""Runs the CIFAR-10 job here and in Python, alternating, and prints the ratios.

  ./bazelw run //benchmarks:cifar_vs_python [-- --blocks=5]

ResNet-18 with the first layer for 32 × 32, on the stand-in data, 2 ranks, one thread per rank on all sides; ours channels-last on shm,
Python's DistributedDataParallel on Gloo with torchvision's transforms and 2 loader workers per rank, plain and channels-last. And the
training transforms of the job with 224 × 224 alone, per picture and core.
"""
import json
import shutil
import statistics
import subprocess
import sys
import tempfile

import compare

OURS, TRANSFORMS, PEER = "examples/cifar10/cifar10", "benchmarks/cifar_transforms", "benchmarks/cifar_peer.py"
CONFIG = "examples/cifar10/config/small_cifar10.yaml"
STEPS = {64: 4, 8: 20}  # of a measured epoch
PICTURES = 2000
ENV = compare.environment()


def ours(data, batch):
    """Images/s of a second epoch of all ranks, and the largest share of it that a rank waited for data."""
    folder = tempfile.mkdtemp()
    subprocess.run([OURS, "--cfg=" + CONFIG, f"--synthetic={PICTURES}", f"--set=data={data}", f"--set=save_dir={folder}",
                    f"--set=batch_size={2 * batch}", "--set=small_images=true", "--set=epoch=2", "--set=log_every=0", "--set=threads=1",
                    f"--set=trainer.limits.train_batches={STEPS[batch]}", "--set=trainer.limits.validate_every_epochs=0",
                    "--set=trainer.limits.validation_batches=1", "--set=trainer.checkpoints.epochs=0"],
                   env=ENV, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rate = [json.loads(line)["images_per_second"] for line in open(folder + "/cifar10/metrics.jsonl")][1]
    waits = [json.loads(line) for line in open(folder + "/cifar10/ranks.jsonl")]
    shutil.rmtree(folder)
    return rate, max(line["data_wait_share"] for line in waits if line["epoch"] == 2)


def python_rate(python, data, batch, *flags):
    out = subprocess.run([python, PEER, "train", data, str(batch), str(STEPS[batch]), *flags], env=ENV, check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    return float(out)


class Timer:
    """A process that answers each line with a number."""

    def __init__(self, *command):
        self.process = subprocess.Popen(command, env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def main():
    blocks = compare.rounds("blocks")
    python = compare.python_peer()
    data = tempfile.mkdtemp()
    ours(data, 8)  # makes the data
    pictures = f"{data}/synthetic-{PICTURES}-1"
    results, waits = {}, {64: [], 8: []}
    timers = {"ours": Timer(TRANSFORMS), "Python": Timer(python, PEER, "transforms")}
    for block in range(blocks):
        for batch in STEPS:
            rate, wait = ours(data, batch)
            results.setdefault(f"ours, batch {batch}", []).append(rate)
            waits[batch].append(wait)
            results.setdefault(f"Python, batch {batch}", []).append(python_rate(python, pictures, batch))
            results.setdefault(f"Python channels-last, batch {batch}", []).append(
                python_rate(python, pictures, batch, "--channels_last"))
        for name, timer in timers.items():
            results.setdefault(f"{name}, transforms", []).append(timer.measure())
        print(f"block {block + 1} of {blocks} done", file=sys.stderr, flush=True)
    for timer in timers.values():
        timer.process.stdin.close()
        timer.process.wait()
    shutil.rmtree(data)

    median = {name: statistics.median(values) for name, values in results.items()}
    print(f"\n{'':34} {'median':>12} {'least':>12} {'most':>12}")
    for name, values in results.items():
        form = (lambda v: f"{v * 1000:8.3f} ms") if "transforms" in name else (lambda v: f"{v:8.1f}/s")
        print(f"{name:34} {form(median[name]):>12} {form(min(values)):>12} {form(max(values)):>12}")
    print()
    compare.ratio("images/s, ResNet-18, 2 ranks, batch 64", median["ours, batch 64"] / median["Python, batch 64"], 0.95)
    compare.ratio("images/s, ResNet-18, 2 ranks, batch 8", median["ours, batch 8"] / median["Python, batch 8"], 1.15)
    compare.ratio("training transforms to 224 × 224, per core", median["Python, transforms"] / median["ours, transforms"], 4)
    for batch, values in waits.items():
        compare.ratio(f"share of time waiting for data, batch {batch}", statistics.median(values), 0.02, at_most=True)


if __name__ == "__main__":
    main()
