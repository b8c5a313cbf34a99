"""Several hosts on this machine, for tests of what goes between machines: network namespaces, joined by a bridge.

A script calls `network.enter()` first of all, which starts it again in a network of its own; then it makes hosts:

    hosts = network.Hosts(2)
    process = hosts[0].start(["program"], RANK="0", MASTER_ADDR=hosts[0].address)

Each host has an address (IPv4 and IPv6) on one cable, its loopback, a host name and its own /etc/hosts, and shares no
abstract Unix socket with the others. It needs root, or user namespaces, and `ip` of iproute2.
"""
import os
import shutil
import subprocess
import sys

_MARK = "LOCKSTEP_TEST_NETWORK"
_TRIES = (["unshare", "-nm"], ["unshare", "-Urnm"])


def _quiet(command):
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def enter():
    """Goes on in a network of its own, or returns why that can't be had; empty when it is there."""
    if os.environ.get(_MARK):
        return ""
    for program in ("unshare", "nsenter", "ip"):
        if shutil.which(program, path=_path()) is None:
            return f"there is no program {program}"
    for way in _TRIES:
        if _quiet([*way, "sh", "-c", f"PATH={_path()} ip link add lockstep0 type bridge"]):
            os.environ.update({_MARK: "1", "PATH": _path()})
            os.execvp("unshare", [*way, sys.executable, *sys.argv])
    return "network namespaces can't be made here: neither as root nor in a user namespace"


def _path():
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"


def _run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}")


class Host:
    def __init__(self, number, name, network):
        self.name, self.address, self.address6 = name, f"10.77.0.{number + 1}", f"fd77::{number + 1}"
        self.processes = []
        self.cable = f"{network}v{number}"
        # It holds the namespaces until it is told to end.
        self.holder = subprocess.Popen(["unshare", "-num", "sh", "-c", f"hostname {name}; echo; read x"],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.holder.stdout.readline()
        end = f"{self.cable}e"
        _run("ip", "link", "add", self.cable, "type", "veth", "peer", "name", end)
        _run("ip", "link", "set", end, "netns", str(self.holder.pid))
        _run("ip", "link", "set", self.cable, "master", network, "up")
        for command in ("ip link set lo up", f"ip link set {end} name eth0", "ip link set eth0 up",
                        f"ip addr add {self.address}/24 dev eth0", f"ip addr add {self.address6}/64 dev eth0 nodad"):
            _run(*self.inside(command.split()))

    def inside(self, command):
        return ["nsenter", "-t", str(self.holder.pid), "-n", "-u", "-m", "--wd", *command]

    def start(self, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **env):
        """`command` on this host, with `env` beside this process's own; its output is text."""
        clean = {k: v for k, v in os.environ.items()
                 if k not in ("OMP_NUM_THREADS", "XML_OUTPUT_FILE") and not k.startswith("PET_")}
        process = subprocess.Popen(self.inside(command), env={**clean, "OMP_NUM_THREADS": "1", **env},
                                   stdout=stdout, stderr=stderr, text=True)
        self.processes.append(process)
        return process

    def resolves(self, lines):
        """`lines` become this host's /etc/hosts; false where it can't be replaced."""
        path = os.path.join(os.environ.get("TEST_TMPDIR", "/tmp"), f"hosts.{os.getpid()}.{self.name}")
        with open(path, "w") as out:
            out.write("127.0.0.1 localhost\n" + lines)
        return _quiet(self.inside(["mount", "--bind", path, "/etc/hosts"]))

    def link(self, up):
        _run("ip", "link", "set", self.cable, "up" if up else "down")

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.holder.communicate("\n")


class Hosts(list):
    """`count` hosts, named host0, host1, …"""
    made = 0

    def __init__(self, count):
        Hosts.made += 1
        self.bridge = f"net{Hosts.made}"
        _run("ip", "link", "add", self.bridge, "type", "bridge")
        _run("ip", "link", "set", self.bridge, "up")
        super().__init__(Host(i, f"host{i}", self.bridge) for i in range(count))

    def close(self):
        for host in self:
            host.close()
        _run("ip", "link", "del", self.bridge)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()
