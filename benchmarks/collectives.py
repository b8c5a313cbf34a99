#!/usr/bin/env python3
"""All-reduce on our shared-memory backend, on Gloo and on Open MPI, alternating, with the ratios.

  ./bazelw run //benchmarks:collectives [-- --rounds=5]

Ours and Gloo are timed in one process per rank at `Backend::allreduce(...)->wait()` (benchmarks/all_reduce.cc), Open MPI
with its defaults at MPI_Allreduce (benchmarks/mpi_all_reduce.c, compiled here). Open MPI is installed with
`apt-get install openmpi-bin libopenmpi-dev` when it is missing.
"""
import os
import shutil
import statistics
import subprocess
import tempfile

import compare

KIB, MIB = 1 << 10, 1 << 20
RANK, LAUNCHER, MPI_SOURCE = "benchmarks/all_reduce", "launch/lockstep_run", "benchmarks/mpi_all_reduce.c"
SIZES = {2: [KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB],
         8: [KIB, 4 * KIB, 64 * KIB, 256 * KIB, 4 * MIB]}
BLOCKS = "3"
SUBJECTS = ("shared", "staged", "gloo", "mpi", "copy")


def compile_mpi():
    if shutil.which("mpicc") is None:
        subprocess.run("apt-get update && apt-get install -y --no-install-recommends openmpi-bin libopenmpi-dev",
                       shell=True, check=True, stdout=subprocess.DEVNULL)
    program = os.path.join(tempfile.mkdtemp(), "mpi_all_reduce")
    subprocess.run(["mpicc", "-O2", MPI_SOURCE, "-o", program], check=True)
    return program


def text(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def time_text(seconds):
    return f"{seconds * 1e6:.2f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def main():
    rounds = compare.rounds()
    mpi = compile_mpi()
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    results = {}
    for ranks, sizes in SIZES.items():
        sizes = list(map(str, sizes))
        peer = ["mpirun", *root, *(["--oversubscribe"] if ranks > (os.cpu_count() or 1) else []), "-n", str(ranks), mpi,
                BLOCKS, *sizes]
        print("Open MPI:", " ".join(peer), flush=True)
        for _ in range(rounds):
            for command in ([LAUNCHER, "--prefix=off", f"--nproc_per_node={ranks}", RANK, BLOCKS, *sizes], peer):
                for line in compare.json_lines(command, dict(os.environ)):
                    for name, seconds in line.items():
                        if name != "bytes":
                            results.setdefault((ranks, line["bytes"], name), []).append(seconds)
    median = {key: statistics.median(values) for key, values in results.items()}

    for ranks, sizes in SIZES.items():
        print(f"\n{ranks} ranks, medians of {rounds} rounds:\n")
        print("| bytes | ours, shared memory | ours, staged | Gloo | Open MPI | a copy |")
        print("| --- | --- | --- | --- | --- | --- |")
        for size in sizes:
            print("|", " | ".join([text(size)] + [time_text(median[ranks, size, name]) for name in SUBJECTS]), "|")
    print()

    def ratio(what, ranks, size, peer, ours, target, at_most=False):
        value = median[ranks, size, ours] / median[ranks, size, peer] if at_most else \
            median[ranks, size, peer] / median[ranks, size, ours]
        compare.ratio(f"{ranks} ranks, {text(size)}, {what}", value, target, at_most)

    ratio("Gloo / ours in shared memory", 2, 64 * MIB, "gloo", "shared", 15)
    ratio("Gloo / ours staged", 2, 64 * MIB, "gloo", "staged", 5)
    ratio("Gloo / ours staged", 2, 4 * KIB, "gloo", "staged", 100)
    ratio("Open MPI / ours in shared memory", 2, 4 * KIB, "mpi", "shared", 2)
    for size in SIZES[2]:
        if 64 * KIB <= size <= 64 * MIB:
            ratio("Open MPI / ours in shared memory", 2, size, "mpi", "shared", 3)
    for size in SIZES[2]:
        ratio("ours staged / Open MPI", 2, size, "mpi", "staged", 1.1, at_most=True)
    ratio("Gloo / ours staged", 8, 4 * KIB, "gloo", "staged", 50)
    ratio("Gloo / ours staged", 8, 4 * MIB, "gloo", "staged", 3)
    ratio("ours staged / Open MPI", 8, 4 * KIB, "mpi", "staged", 2, at_most=True)
    for ranks, sizes in SIZES.items():
        for size in sizes:
            ratio("Gloo / ours staged", ranks, size, "gloo", "staged", 1)


if __name__ == "__main__":
    main()
