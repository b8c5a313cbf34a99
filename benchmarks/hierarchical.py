#!/usr/bin/env python3
"""Collectives of 2 hosts with 2 ranks each: the hierarchical backend against Gloo over all ranks, alternating.

  ./bazelw run //benchmarks:hierarchical [-- --rounds=5]

The hosts are network namespaces of this machine, joined by a bridge with a veth pair each, so that both sides send over
the same cables; all ranks share this machine's cores. It needs root, or user namespaces, and `ip` of iproute2. A round
is one start of all ranks (benchmarks/hierarchical.cc), which alternate in blocks of calls that end with a barrier; medians
are over rounds. The bytes of an all-gather are those of its result.
"""
import json
import os
import statistics
import sys

sys.path[:0] = ["benchmarks", "tests"]
import compare
import network

KIB, MIB = 1 << 10, 1 << 20
RANK = os.path.abspath("benchmarks/hierarchical_rank")
SIZES = [4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB]
BLOCKS = "5"
LAYOUT = [[0, 1], [2, 3]]


def text(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def main():
    rounds = compare.rounds()
    why_not = network.enter()
    if why_not:
        sys.exit("hierarchical: " + why_not)
    results = {}
    with network.Hosts(2) as hosts:
        for round_ in range(rounds):
            ranks = [hosts[host].start([RANK, BLOCKS, *map(str, SIZES)], RANK=str(rank), WORLD_SIZE="4",
                                       LOCAL_RANK=str(local), LOCAL_WORLD_SIZE="2", MASTER_ADDR=hosts[0].address,
                                       MASTER_PORT=str(29500 + round_), TORCH_CPP_LOG_LEVEL="ERROR")
                     for host, mates in enumerate(LAYOUT) for local, rank in enumerate(mates)]
            outputs = [rank.communicate() for rank in ranks]
            for rank, (_, errors) in zip(ranks, outputs):
                if rank.returncode != 0:
                    sys.exit(errors.strip())
            for line in map(json.loads, outputs[0][0].splitlines()):
                for name in ("shared", "staged", "gloo"):
                    results.setdefault((line["operation"], line["bytes"], name), []).append(line[name])
            print(f"round {round_ + 1} of {rounds} done", file=sys.stderr, flush=True)
    median = {key: statistics.median(values) for key, values in results.items()}

    operations = list(dict.fromkeys(key[0] for key in median))
    for operation in operations:
        print(f"\n{operation}, 2 hosts with 2 ranks each, ms, medians of {rounds} rounds:\n")
        print("| bytes | hierarchical, shared memory | hierarchical, staged | Gloo |")
        print("| --- | --- | --- | --- |")
        for size in SIZES:
            cells = [f"{median[operation, size, name] * 1e3:.2f}" for name in ("shared", "staged", "gloo")]
            print("|", " | ".join([text(size)] + cells), "|")
    print()
    for operation in operations:
        for size in SIZES:
            for name, where in (("staged", "staged"), ("shared", "in shared memory")):
                compare.ratio(f"{operation}, {text(size)}, Gloo / hierarchical {where}",
                              median[operation, size, "gloo"] / median[operation, size, name], 1.0)


if __name__ == "__main__":
    main()
