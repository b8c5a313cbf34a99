"""The MNIST program on small data that can be learnt, for the tests of it."""
import json
import os
import random
import re
import subprocess
import tempfile

PROGRAM = os.path.abspath("examples/mnist/mnist")
LAUNCHER = os.path.abspath("launch/lockstep_run")
ENV = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "BUILD_WORKING_DIRECTORY", "XML_OUTPUT_FILE")}
TIMED = ("images_per_second", "seconds")


def is_log_line(line):
    """What glog says for information, as against an error of ours."""
    return re.match(r"I\d{8} ", line) is not None


def folder():
    return tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))


def row(label, rng):
    """A picture whose label can be learnt: a bright block of rows."""
    pixels = [rng.randrange(60) for _ in range(784)]
    for y in range(label * 2, label * 2 + 6):
        for x in range(28):
            pixels[y * 28 + x] = 200 + rng.randrange(56)
    return ",".join(map(str, [label] + pixels))


def csv(rows=400, path=None, extra=()):
    rng = random.Random(1206)
    path = path or os.path.join(folder(), "data.csv")
    with open(path, "w") as out:
        for i in range(rows):
            out.write(row(i % 10, rng) + "\n")
        for line in extra:
            out.write(line + "\n")
    return path


CSV = csv()


def command(*flags, csv_path=CSV):
    args = [PROGRAM, "--port=0", "--epochs=2", "--batch_size=32"]
    if csv_path:
        args.append("--mnist_file_path=" + csv_path)
    return args + list(flags)


def run(*flags, csv_path=CSV, timeout=60, cwd=None, env=None):
    if not any(f.startswith("--run_dir") or f.startswith("--resume") for f in flags):
        flags += ("--run_dir=" + os.path.join(folder(), "run"),)
    return subprocess.run(command(*flags, csv_path=csv_path), env=env or ENV, cwd=cwd, capture_output=True, text=True, timeout=timeout)


def metrics(run_dir):
    return [json.loads(line) for line in open(os.path.join(run_dir, "metrics.jsonl"))]


def untimed(run_dir):
    return [{k: v for k, v in m.items() if k not in TIMED} for m in metrics(run_dir)]


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def children(pid):
    try:
        return [int(p) for p in open(f"/proc/{pid}/task/{pid}/children").read().split()]
    except OSError:
        return []
