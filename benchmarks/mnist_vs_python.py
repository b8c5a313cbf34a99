#!/usr/bin/env python3
"""Runs the MNIST job here and in Python, alternating, and prints the ratios.

  ./bazelw run //benchmarks:mnist_vs_python [-- --blocks=5]

Same data (Fashion-MNIST), 2 ranks, batch 256 each, one thread per rank on all sides, Gloo (and ours on shm too), batch norm local on both
sides. Python's PyTorch of the same version is installed by install_python_peer.sh at the first run.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import compare

DATA = "/usr/share/datasets/fashion-mnist"
EPOCHS, BATCH = 3, 256
HERE = os.path.dirname(os.path.abspath(sys.argv[0]))
OURS, CSV_READER, PEER = "examples/mnist/mnist", "benchmarks/read_csv", "benchmarks/mnist_peer.py"


ENV = compare.environment()


def ours_command(run_dir, *flags, backend="gloo"):
    return [OURS, "--port=0", "--nproc_per_node=2", "--threads=1", "--backend=" + backend, f"--batch_size={BATCH}",
            f"--epochs={EPOCHS}", "--run_dir=" + run_dir, *flags]


def ours_rate(*flags, backend="gloo"):
    run_dir = tempfile.mkdtemp() + "/run"
    subprocess.run(ours_command(run_dir, "--data_dir=" + DATA, *flags, backend=backend), env=ENV, check=True, stdout=subprocess.DEVNULL)
    rates = [json.loads(line)["images_per_second"] for line in open(run_dir + "/metrics.jsonl")]
    shutil.rmtree(os.path.dirname(run_dir))
    return statistics.median(rates[1:])  # the first epoch warms up, on all sides


def python_rate(python, *flags):
    out = subprocess.run([python, PEER, "train", DATA, str(EPOCHS), str(BATCH), *flags], env=ENV, check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    return statistics.median([float(line) for line in out.split()][1:])


def seconds_until(command, sign):
    start = time.perf_counter()
    process = subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in process.stdout:
        if sign in line:
            break
    else:
        raise RuntimeError(f"{command[0]} ended before its first step")
    seconds = time.perf_counter() - start
    process.terminate()
    process.communicate()
    return seconds


def write_csv(path, rows=10000):
    import gzip
    images = gzip.open(DATA + "/t10k-images-idx3-ubyte.gz").read()[16:]
    labels = gzip.open(DATA + "/t10k-labels-idx1-ubyte.gz").read()[8:]
    with open(path, "w") as out:
        for i in range(rows):
            out.write(",".join(map(str, [labels[i], *images[i * 784:(i + 1) * 784]])) + "\n")


class Reader:
    """A process that reads the file once for each line it is sent."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    blocks = compare.rounds("blocks")
    python = compare.python_peer()
    folder = tempfile.mkdtemp()
    csv = folder + "/fashion.csv"
    write_csv(csv)

    columns = {
        "ours on Gloo, batch norm local": lambda: ours_rate("--sync_batch_norm=false"),
        "ours on shm, batch norm local": lambda: ours_rate("--sync_batch_norm=false", backend="shm"),
        "ours on Gloo, synchronised": lambda: ours_rate("--sync_batch_norm=true"),
        "ours on shm, synchronised": lambda: ours_rate("--sync_batch_norm=true", backend="shm"),
        "Python, plain": lambda: python_rate(python),
        "Python, tuned": lambda: python_rate(python, "--tuned"),
        "ours, start to first step": lambda: seconds_until(
            ours_command(tempfile.mkdtemp(dir=folder) + "/run", "--mnist_file_path=" + csv, "--log_every=1"), "step: 1,"),
        "Python, start to first step": lambda: seconds_until([python, PEER, "first", csv, str(BATCH)], "first step"),
    }
    readers = {"ours, CSV of 10,000 rows": Reader([CSV_READER, csv]), "pandas, CSV of 10,000 rows": Reader([python, PEER, "csv", csv])}
    columns.update({name: reader.read for name, reader in readers.items()})
    for reader in readers.values():
        reader.read()  # the file is cached now, for both
    results = {name: [] for name in columns}
    for block in range(blocks):
        for name, measure in columns.items():
            results[name].append(measure())
        print(f"block {block + 1} of {blocks} done", file=sys.stderr, flush=True)
    for reader in readers.values():
        reader.close()
    shutil.rmtree(folder)

    median = {name: statistics.median(values) for name, values in results.items()}
    print(f"\n{'':32} {'median':>10} {'least':>10} {'most':>10}")
    for name, values in results.items():
        seconds = "start" in name or "CSV" in name
        form = (lambda v: f"{v:8.3f} s") if seconds else (lambda v: f"{v:8.0f}/s")
        print(f"{name:32} {form(median[name]):>10} {form(min(values)):>10} {form(max(values)):>10}")
    ours = median["ours on Gloo, batch norm local"]
    print()
    for name, value, target in (
            ("images/s, 2 ranks, Python plain on Gloo", ours / median["Python, plain"], 1.7),
            ("images/s, 2 ranks, ours on shm, Python plain on Gloo",
             median["ours on shm, batch norm local"] / median["Python, plain"], 2),
            ("images/s, 2 ranks, Python tuned", ours / median["Python, tuned"], 1.1),
            ("start to first step", median["Python, start to first step"] / median["ours, start to first step"], 4),
            ("CSV of 10,000 rows against pandas", median["pandas, CSV of 10,000 rows"] / median["ours, CSV of 10,000 rows"], 2)):
        compare.ratio(name, value, target)


if __name__ == "__main__":
    main()
