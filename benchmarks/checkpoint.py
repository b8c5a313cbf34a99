#!/usr/bin/env python3
"""Checkpoints of 1 GiB of parameters here and in Python, alternating, with the ratios.

  ./bazelw run //benchmarks:checkpoint [-- --rounds=3]

Both sides write to one folder below $TMPDIR; files are in the page cache, as many threads as
cores. Python's PyTorch of the same version
is installed by install_python_peer.sh at the first run.
"""
import os
import shutil
import statistics
import tempfile

import compare

ENV, MIB = {**compare.environment(), "OMP_NUM_THREADS": str(os.cpu_count())}, "1024"
SHOWN = {"open": "open and map, checksum not verified; torch.load(mmap=True)",
         "load": "read, verify, copy into a model; torch.load, load_state_dict",
         "save": "save, with fsync",
         "first background save": "training waits for the first background save",
         "later background save": "and for later ones"}


def main():
    rounds, python = compare.rounds(default=3), compare.python_peer()
    folder = tempfile.mkdtemp()
    try:
        results = compare.alternate(rounds, {"ours": ["benchmarks/checkpoint_ours", folder, MIB, "3"],
                                             "python": [python, "benchmarks/checkpoint_peer.py", folder, MIB, "3"]}, ENV)
    finally:
        shutil.rmtree(folder)
    median = {key: statistics.median(values) for key, values in results.items()}
    print(f"\n{MIB} MiB of parameters, medians of {rounds} rounds:\n\n| | ours | Python |\n| --- | --- | --- |")
    for name, text in SHOWN.items():
        other = f"{median['python', name] * 1e3:.1f} ms" if ("python", name) in median else "–"
        print(f"| {text} | {median['ours', name] * 1e3:.1f} ms | {other} |")
    print()
    for name in ("open", "load", "save"):
        compare.ratio(f"{SHOWN[name].split(';')[0]}, Python / ours", median["python", name] / median["ours", name], 1)
    compare.ratio("first background save / Python's save", median["ours", "first background save"] / median["python", "save"], 0.5,
                  at_most=True)
    compare.ratio("later background saves / Python's save", median["ours", "later background save"] / median["python", "save"], 0.15,
                  at_most=True)
    compare.ratio("memory beside the model while loading into it, of the file", median["ours", "peak beside the model, of the file"],
                  0.1, at_most=True)


if __name__ == "__main__":
    main()
