#!/usr/bin/env python3
"""The MNIST program on two hosts with two ranks each, one of which is lost and started again."""
import os
import sys
import time
import unittest

sys.path[:0] = ["tests", "tests/examples"]
import junit  # noqa: E402
import network  # noqa: E402

WHY_NOT = network.enter()
from mnist_program import PROGRAM, csv, folder, metrics  # noqa: E402

LAYOUT = [[0, 1], [2, 3]]


def start(hosts, port, data, *flags):
    """The processes by rank."""
    return {rank: hosts[host].start([PROGRAM, "--mnist_file_path=" + data, "--batch_size=16", *flags], RANK=str(rank),
                                    WORLD_SIZE="4", LOCAL_RANK=str(local), LOCAL_WORLD_SIZE="2",
                                    MASTER_ADDR=hosts[0].address, MASTER_PORT=str(port))
            for host, ranks in enumerate(LAYOUT) for local, rank in enumerate(ranks)}


def finish(processes):
    said = {rank: process.communicate(timeout=120) for rank, process in processes.items()}
    return said, {rank: process.returncode for rank, process in processes.items()}


@unittest.skipIf(WHY_NOT, WHY_NOT)
class MnistOnSeveralHosts(unittest.TestCase):
    def test_a_run_goes_on_from_its_checkpoint_after_a_host_was_lost(self):
        data, run_dir = csv(), os.path.join(folder(), "run")
        with network.Hosts(2) as hosts:
            processes = start(hosts, 29500, data, "--run_dir=" + run_dir, "--epochs=1000", "--patience=1000")
            while not os.path.exists(run_dir + "/metrics.jsonl") or len(metrics(run_dir)) < 2:
                self.assertEqual({p.poll() for p in processes.values()}, {None})
                time.sleep(0.02)
            for rank in (2, 3):
                processes[rank].kill()
            said, codes = finish(processes)
            for rank in (0, 1):
                self.assertEqual(codes[rank], 1, said)
                self.assertRegex(said[rank][1], f"rank {rank}: error: .*rank [23](, 3)? is gone", said)

            done = len(metrics(run_dir))
            processes = start(hosts, 29501, data, "--resume=" + run_dir, f"--epochs={done + 2}", "--patience=1000")
            said, codes = finish(processes)
            self.assertEqual(set(codes.values()), {0}, said)
            self.assertIn("CPU tensors over hierarchical; 2 hosts, ranks 0, 1 | 2, 3", said[0][1])
            self.assertIn("test accuracy", said[0][0])
            self.assertEqual([said[rank][0] for rank in (1, 2, 3)], [""] * 3, "rank 0 alone prints, not each host's first")
            self.assertEqual([m["epoch"] for m in metrics(run_dir)], list(range(1, done + 3)))


if __name__ == "__main__":
    junit.main()
