#!/usr/bin/env python3
"""lockstep_run beside the real torchrun: the same options, and the same environment for the ranks."""
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, "tests")
import junit  # noqa: E402

PROGRAM = os.path.abspath("launch/lockstep_run")
PEER = os.environ.get("LOCKSTEP_PYTHON_PEER") or os.path.expanduser("~/.cache/lockstep/python-peer-2.11.0/bin/python")
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "TORCHELASTIC_", "OMP_", "KMP_", "PYTHON", "TEST_", "XML_", "CUDA_VISIBLE"))}
SHOW = "import json, os, sys; open(sys.argv[1] + '/' + os.environ['RANK'], 'w').write(json.dumps(dict(os.environ)))"

# What differs, and why.
DIFFERENT = {
    "TORCHELASTIC_USE_AGENT_STORE": "rank 0 holds our store",
    "TORCHELASTIC_ERROR_FILE": "a folder of its own each time",
    "LOCKSTEP_RESTART_COUNT": "ours alone; it counts the starts for a host that has come as well",
    "OMP_NUM_THREADS": "torchrun says 1, we share the cores out",
    "TORCHELASTIC_RUN_ID": "ours is another one for each launch, unless --rdzv_id says it",
}
ADDED_BY_PYTHON = {"LC_CTYPE", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"}


def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


class Torchrun(unittest.TestCase):
    def setUp(self):
        if not os.path.exists(PEER):
            self.skipTest("there is no Python with PyTorch here; benchmarks/install_python_peer.sh installs one")

    def environments(self, launcher, *options, **env):
        folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        result = subprocess.run([*launcher, *options, sys.executable, "-c", SHOW, folder], env={**ENV, **env}, capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        return {name: json.load(open(os.path.join(folder, name))) for name in sorted(os.listdir(folder))}

    def compare(self, *options, equal=(), **env):
        theirs = self.environments([PEER, "-m", "torch.distributed.run", "--no-python"], *options, **env)
        ours = self.environments([PROGRAM], *options, **env)
        self.assertEqual(list(ours), list(theirs))
        for rank, variables in theirs.items():
            names = (set(variables) | set(ours[rank])) - ADDED_BY_PYTHON - (set(DIFFERENT) - set(equal)) - {"PYTHONUNBUFFERED"}
            for name in sorted(names):
                self.assertEqual(ours[rank].get(name), variables.get(name), f"{name} of rank {rank}")
            for name in DIFFERENT:
                self.assertIn(name, ours[rank])
        return ours

    def test_ranks_have_the_same_environment(self):
        ours = self.compare("--nproc_per_node=2", f"--master_port={free_port()}", "--max-restarts=2", "--role", "trainer")
        self.assertEqual(ours["1"]["ROLE_NAME"], "trainer")

    def test_options_may_come_from_the_environment(self):
        ours = self.compare(PET_NPROC_PER_NODE="2", PET_MASTER_PORT=str(free_port()), PET_RDZV_ID="mine", PET_SIGNALS_TO_HANDLE="SIGTERM,SIGINT",
                            equal=["TORCHELASTIC_RUN_ID"])
        self.assertEqual(ours["0"]["TORCHELASTIC_RUN_ID"], "mine")

    def test_virtual_local_ranks_see_one_device_each(self):
        ours = self.compare("--nproc_per_node=2", f"--master_port={free_port()}", "--virtual_local_rank", CUDA_VISIBLE_DEVICES="4,6")
        self.assertEqual([ours[r]["CUDA_VISIBLE_DEVICES"] for r in "01"], ["4", "6"])

    def test_every_option_works_or_is_refused_by_name(self):
        text = subprocess.run([PEER, "-m", "torch.distributed.run", "--help"], env=ENV, capture_output=True, text=True, timeout=60).stdout
        options = set(re.findall(r"^  (?:-\w, |-\w \w+, )?(--[a-z][a-z-]+)", text, re.MULTILINE)) - {"--help"}
        self.assertGreater(len(options), 25)
        accepted = {"--standalone": None, "--no-python": None, "--virtual-local-rank": None, "--nnodes": "1", "--rdzv-backend": "c10d",
                    "--rdzv-conf": "join_timeout=5", "--start-method": "spawn", "--event-log-handler": "null", "--redirects": "0", "--tee": "0",
                    "--local-ranks-filter": "0", "--log-dir": tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")), "--master-port": "0",
                    "--signals-to-handle": "SIGTERM", "--local-addr": "127.0.0.1", "--rdzv-endpoint": "localhost:0", "--master-addr": "localhost"}
        refused = {"--module": None, "--run-path": None, "--logs-specs": "x", "--numa-binding": "node"}
        with_filters = {"--duplicate-stdout-filters", "--duplicate-stderr-filters"}
        for option in sorted(options):
            value = accepted.get(option, refused.get(option, "1"))
            more = ["--tee=3"] if option in with_filters else ["--master_port=0"] if option != "--master-port" else []
            for name in (option, option.replace("-", "_").replace("__", "--", 1)):
                command = [PROGRAM, *more, name, *([value] if value is not None else []), "true"]
                result = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=30)
                if option in refused:
                    self.assertEqual(result.returncode, 2, command)
                    self.assertIn("error: --" + option[2:].replace("-", "_") + ":", result.stderr)
                else:
                    self.assertEqual(result.returncode, 0, (command, result.stderr))


if __name__ == "__main__":
    junit.main()
