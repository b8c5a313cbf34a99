#!/usr/bin/env python3
"""Loss scaling, clipping and a mixed-precision step, here and in Python, alternating, with the ratios.

  ./bazelw run //benchmarks:amp [-- --rounds=5]

On CUDA where there is one (build with --config=cuda), else on the CPU with one thread on both sides (benchmarks/amp.cc,
benchmarks/amp_peer.py). Python's PyTorch of the same version is installed by install_python_peer.sh at the first run.
"""
import statistics
import sys

import compare

ENV = compare.environment()
SUBJECTS = {"unscale/large": "unscale and check 160 tensors, 8.5 million numbers",
            "unscale/small": "unscale and check 160 tensors of 256 numbers",
            "clip/large": "clip the norm of 160 tensors, 8.5 million numbers",
            "clip/small": "clip the norm of 160 tensors of 256 numbers",
            "step/small": "scaler's step with SGD and update, 160 tensors of 256 numbers",
            "conv_net/float": "ConvNet step, float32, batch 128",
            "conv_net/bf16": "ConvNet step, bfloat16, batch 128",
            "conv_net/fp16": "ConvNet step, float16 with scaler, batch 128"}


def main():
    rounds, python = compare.rounds(), compare.python_peer()
    results = compare.alternate(rounds, {"ours": ["benchmarks/amp_ours"], "python": [python, "benchmarks/amp_peer.py"]}, ENV)
    devices = {*results.pop(("ours", "device")), *results.pop(("python", "device"))}
    if len(devices) > 1:
        sys.exit("one side ran on CUDA and the other on the CPU; build with --config=cuda")
    median = {key: statistics.median(values) for key, values in results.items()}
    shown = {subject: name for subject, name in SUBJECTS.items() if ("ours", subject) in median}
    print(f"\nOn {devices.pop()}, medians of {rounds} rounds:\n\n| | ours | Python |\n| --- | --- | --- |")
    for subject, name in shown.items():
        print(f"| {name} | {median['ours', subject] * 1e6:.0f} µs | {median['python', subject] * 1e6:.0f} µs |")
    print()
    for subject, name in shown.items():
        compare.ratio(f"{name}, Python / ours", median["python", subject] / median["ours", subject], 1)
    compare.ratio("a step of a tiny model, scaler that is off / none", median["ours", "tiny/disabled"] / median["ours", "tiny/none"],
                  1.02, at_most=True)


if __name__ == "__main__":
    main()
