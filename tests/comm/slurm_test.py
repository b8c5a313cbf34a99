#!/usr/bin/env python3
"""A program under Slurm's srun, in a cluster of this machine alone that the test starts itself."""
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path[:0] = ["tests", "tests/comm"]
import junit  # noqa: E402
from launched import ENV, LAUNCHER, PROGRAM, Launched, expected, free_port, need, run  # noqa: E402


class Cluster:
    """Slurm on this machine alone: munged, slurmctld and slurmd of our own, in a folder of their own."""

    def __init__(self):
        need("munged", "mungekey", "slurmctld", "slurmd", "srun")
        if os.geteuid() != 0:
            raise unittest.SkipTest("slurmd runs as root only")
        self.folder = tempfile.mkdtemp(prefix="slurm", dir="/tmp")  # paths of sockets are short
        self.processes = []
        os.chmod(self.folder, 0o755)
        for name in ("state", "spool"):
            os.mkdir(f"{self.folder}/{name}")
        host = socket.gethostname().split(".")[0]
        with open(f"{self.folder}/slurm.conf", "w") as out:
            out.write(f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge.socket
CredType=cred/munge
CryptoType=crypto/munge
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd.pid
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=300
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES OverSubscribe=FORCE:8 MaxTime=INFINITE State=UP
""")
        self.env = {"SLURM_CONF": f"{self.folder}/slurm.conf", "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
        try:
            self._start()
        except Exception:
            self.close()
            raise

    def _start(self):
        munge = ["--key-file", f"{self.folder}/munge.key"]
        subprocess.run(["/usr/sbin/mungekey", "-c", "-k", munge[1]], check=True, capture_output=True)
        self._background(["munged", "-F", "--force", *munge, "-S", f"{self.folder}/munge.socket", "--pid-file", f"{self.folder}/munged.pid",
                          "--log-file", f"{self.folder}/munged.log", "--seed-file", f"{self.folder}/munged.seed"])
        self._wait(lambda: os.path.exists(f"{self.folder}/munge.socket"), "munged")
        self._background(["slurmctld", "-D", "-c"])
        self._background(["slurmd", "-D"])
        self._wait(lambda: "idle" in self._run(["sinfo", "-h", "-o", "%T"]).stdout, "slurmd")

    def _run(self, command):
        return subprocess.run(command, env={**ENV, **self.env}, capture_output=True, text=True, timeout=30)

    def _background(self, command):
        command[0] = shutil.which(command[0], path=self.env["PATH"])
        with open(f"{self.folder}/{os.path.basename(command[0])}.out", "w") as out:
            self.processes.append(subprocess.Popen(command, env={**ENV, **self.env}, stdout=out, stderr=out))

    def _wait(self, ready, what):
        deadline = time.time() + 20
        while not ready():
            if time.time() > deadline or self.processes[-1].poll() is not None:
                raise unittest.SkipTest(f"{what} does not start here: {self._logs()}")
            time.sleep(0.1)

    def _logs(self):
        text = ""
        for name in sorted(os.listdir(self.folder)):
            if name.endswith((".log", ".out")):
                text += f"{name}: {open(os.path.join(self.folder, name)).read()[-600:]}\n"
        return text

    def srun(self, *command, **env):
        return run("srun", *command, **self.env, **env)

    def close(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Slurm(Launched):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def test_ranks_meet_without_more_words(self):
        self.expect(self.cluster.srun("-n", "2", "--overcommit", PROGRAM), 2)

    def test_a_batch_script_is_no_rank_but_its_steps_are(self):
        script = os.path.join(self.cluster.folder, "batch.sh")
        out = os.path.join(self.cluster.folder, "batch.out")
        with open(script, "w") as f:
            f.write(f"#!/bin/sh\n{PROGRAM}\nsrun -n 2 --overcommit {PROGRAM}\n")
        result = run("sbatch", "--wait", "-n", "2", "--overcommit", "-o", out, "-e", "/dev/null", script, **self.cluster.env)
        text = open(out).read() if os.path.exists(out) else ""
        self.assertEqual(result.returncode, 0, result.stderr + text)
        self.assertEqual(sorted(text.splitlines()), sorted(["rank 0 of 1, local 0 of 1, sum 1", *expected(2)]))

    def test_around_a_launcher(self):
        self.expect(self.cluster.srun("-n", "1", LAUNCHER, "--standalone", "--nproc_per_node=2", PROGRAM), 2)


if __name__ == "__main__":
    junit.main()
