"""What the side-by-side benchmarks have in common."""
import json
import os
import subprocess
import sys


def rounds(name="rounds", default=5):
    """Of --rounds=N; any other argument ends the program."""
    for argument in sys.argv[1:]:
        key, _, value = argument.partition("=")
        if key != "--" + name or not value.isdigit() or int(value) == 0:
            sys.exit(f"unknown argument {argument}; known: --{name}=N")
        default = int(value)
    return default


def environment():
    """The same for all sides: one thread, and CUDA's libraries, which Python's PyTorch links."""
    env = {k: v for k, v in os.environ.items() if k != "BUILD_WORKING_DIRECTORY"}
    cuda = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "lib64")
    env["LD_LIBRARY_PATH"] = ":".join(filter(None, [cuda, env.get("LD_LIBRARY_PATH")]))
    env["OMP_NUM_THREADS"] = "1"
    return env


def json_lines(command, env):
    """The objects that a program prints, one a line."""
    result = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.stderr.strip()}")
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def python_peer():
    """Python with PyTorch of the same version, installed at the first run."""
    return subprocess.run(["benchmarks/install_python_peer.sh"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def alternate(rounds, commands, env):
    """In each round every side's command runs once and prints one object; the values of each (side, key), by round."""
    results = {}
    for round_ in range(rounds):
        for side, command in commands.items():
            for key, value in json_lines(command, env)[0].items():
                results.setdefault((side, key), []).append(value)
        print(f"round {round_ + 1} of {rounds} done", file=sys.stderr, flush=True)
    return results


def ratio(name, value, target, at_most=False):
    good = value <= target if at_most else value >= target
    print(f"ratio: {name}: {value:.2f} (target {'<=' if at_most else '>='} {target}){'' if good else '  MISSED'}")
