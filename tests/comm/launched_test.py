#!/usr/bin/env python3
"""A program under the real launchers: those that are installed."""
import os
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = ["tests", "tests/comm"]
import junit  # noqa: E402
from launched import ENV, LAUNCHER, PEER, PROGRAM, Launched, expected, free_port, need, run  # noqa: E402


class OpenMpi(Launched):
    def setUp(self):
        need("mpirun.openmpi")
        # As root in a sandbox without a network.
        self.mpirun = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "plm", "isolated", "--mca",
                       "btl", "self,vader", "-n"]

    def test_ranks_meet_without_more_words(self):
        self.expect(run(*self.mpirun, "2", PROGRAM), 2)

    def test_two_runs_at_a_time_keep_apart(self):
        runs = [subprocess.Popen([*self.mpirun, "2", PROGRAM], env=ENV, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for process in runs:
            out, _ = process.communicate(timeout=50)
            self.assertEqual(sorted(out.splitlines()), expected(2))

    def test_a_shell_between_is_no_matter(self):
        self.expect(run(*self.mpirun, "2", "sh", "-c", f"{PROGRAM}; true"), 2)

    def test_the_port_may_be_said(self):
        self.expect(run(*self.mpirun, "2", "-x", "MASTER_ADDR=127.0.0.1", "-x", f"MASTER_PORT={free_port()}", PROGRAM), 2)

    def test_around_a_launcher_it_is_refused(self):
        self.expect_error(run(*self.mpirun, "2", LAUNCHER, "--standalone", PROGRAM), "mpirun has started 2 launchers")

    def test_a_conflict_is_named(self):
        self.expect_error(run(*self.mpirun, "2", "-x", "RANK=1", "-x", "WORLD_SIZE=2", PROGRAM), "RANK=1 but OMPI_COMM_WORLD_RANK=0")


class Hydra(Launched):
    def test_ranks_meet_without_more_words(self):
        need("mpiexec.hydra")
        self.expect(run("mpiexec.hydra", "-n", "2", PROGRAM), 2)
        self.expect(run("mpiexec.hydra", "-n", "2", "sh", "-c", f"{PROGRAM}; true"), 2)


class Torch(Launched):
    def setUp(self):
        if not os.path.exists(PEER):
            self.skipTest("there is no Python with PyTorch here; benchmarks/install_python_peer.sh installs one")

    def test_torchrun_with_its_store(self):
        self.expect(run(PEER, "-m", "torch.distributed.run", "--no-python", "--standalone", "--nproc_per_node=2", PROGRAM), 2)

    def test_the_older_launcher_that_passes_the_local_rank(self):
        # It passes the flag to Python programs only.
        script = os.path.join(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")), "script.py")
        with open(script, "w") as out:
            out.write(f"import os, sys\nassert sys.argv[1].startswith('--local'), sys.argv\n"
                      f"del os.environ['LOCAL_RANK']\nos.execv({PROGRAM!r}, [{PROGRAM!r}, *sys.argv[1:]])\n")
        self.expect(run(PEER, "-m", "torch.distributed.launch", f"--master_port={free_port()}", "--nproc_per_node=2", script), 2)


class Ours(Launched):
    def test_lockstep_run(self):
        self.expect(run(LAUNCHER, "--standalone", "--nproc_per_node=2", PROGRAM), 2)

    def by_hand(self, *extra, flags=((), ()), **env):
        port = str(free_port())
        ranks = [subprocess.Popen([PROGRAM, *flags[rank]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env={**ENV, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                                       **{k: v.format(rank=rank) for k, v in env.items()}}) for rank in range(2)]
        return [rank.communicate(timeout=50) + (rank.returncode,) for rank in ranks]

    def test_by_hand(self):
        self.assertEqual([out.strip() for out, _, _ in self.by_hand()], expected(2))

    def test_a_flag_says_the_local_rank(self):
        for spelling in (["--local_rank={}"], ["--local-rank", "{}"]):
            outs = self.by_hand(flags=[[part.format(rank) for part in spelling] for rank in range(2)], LOCAL_WORLD_SIZE="2")
            self.assertEqual([out.strip() for out, _, _ in outs], expected(2))

    def test_kubernetes(self):
        outs = self.by_hand(KUBERNETES_SERVICE_HOST="10.96.0.1", PET_NNODES="2", PET_NPROC_PER_NODE="1")
        self.assertEqual([out.strip() for out, _, _ in outs], [f"rank {r} of 2, local 0 of 1, sum 3" for r in range(2)])


if __name__ == "__main__":
    junit.main()
