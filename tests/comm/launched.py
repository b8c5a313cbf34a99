"""What the tests of a program under other launchers have in common."""
import os
import shutil
import socket
import subprocess
import unittest

PROGRAM = os.path.abspath("tests/comm/launched_program")
LAUNCHER = os.path.abspath("launch/lockstep_run")
PEER = os.environ.get("LOCKSTEP_PYTHON_PEER") or os.path.expanduser("~/.cache/lockstep/python-peer-2.11.0/bin/python")
OURS = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "OMPI_", "PMI", "SLURM_", "PET_", "KUBERNETES_")
ENV = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
ENV["OMP_NUM_THREADS"] = "1"


def expected(ranks):
    total = ranks * (ranks + 1) // 2
    return [f"rank {r} of {ranks}, local {r} of {ranks}, sum {total}" for r in range(ranks)]


def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def need(*programs):
    for program in programs:
        if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
            raise unittest.SkipTest(f"{program} is not installed")


def run(*command, timeout=50, **env):
    return subprocess.run(command, env={**ENV, **env}, capture_output=True, text=True, timeout=timeout)


class Launched(unittest.TestCase):
    def expect(self, result, ranks):
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        lines = [line.split("]: ")[-1] for line in result.stdout.splitlines() if "rank " in line]
        self.assertEqual(sorted(lines), expected(ranks), result.stderr)

    def expect_error(self, result, text):
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(text, result.stdout + result.stderr)
