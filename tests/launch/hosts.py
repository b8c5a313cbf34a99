"""Hosts for tests: network namespaces with a link each to one bridge, 10.77.0.1, 10.77.0.2 and so on, in a private network."""
import os
import shutil
import subprocess
import unittest


class Hosts:
    """`with Hosts(2) as hosts`; skips the test where the system refuses namespaces."""

    def __init__(self, count):
        if not shutil.which("ip") or not shutil.which("nsenter"):
            raise unittest.SkipTest("ip (iproute2) and nsenter (util-linux) are needed to make hosts")
        self.holders, self.user = [], []
        for user in ([], ["-U", "-r"]):
            if subprocess.run(["unshare", *user, "-n", "-u", "true"], capture_output=True).returncode == 0:
                self.user = user
                break
        else:
            raise unittest.SkipTest("this system refuses network namespaces (unshare -n)")
        try:
            self.switch = self._hold(self.user)
            self._in(self.switch, "ip", "link", "add", "bridge", "type", "bridge")
            self._in(self.switch, "ip", "link", "set", "bridge", "up")
            self.hosts = [self._add(i) for i in range(count)]
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            raise unittest.SkipTest(f"no network can be made here: {error}: {getattr(error, 'stderr', '')}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _hold(self, user, inside=()):
        """A process that keeps new namespaces."""
        holder = subprocess.Popen([*inside, "unshare", *user, "-n", "-u", "sh", "-c", "echo ready; exec sleep 100000"],
                                  stdout=subprocess.PIPE, text=True)
        self.holders.append(holder)
        if holder.stdout.readline() != "ready\n":
            raise OSError("unshare failed")
        return holder.pid

    def _enter(self, pid):
        return ["nsenter", "-t", str(pid), *(["-U", "--preserve-credentials"] if self.user else []), "-n", "-u"]

    def _in(self, pid, *command):
        subprocess.run([*self._enter(pid), *command], check=True, capture_output=True, text=True)

    def _add(self, i):
        pid = self._hold([], self._enter(self.switch))
        self._in(self.switch, "ip", "link", "add", f"link{i}", "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self._in(self.switch, "ip", "link", "set", f"link{i}", "master", "bridge", "up")
        self._in(pid, "ip", "address", "add", f"{self.address(i)}/24", "dev", "eth0")
        self._in(pid, "ip", "link", "set", "eth0", "up")
        self._in(pid, "ip", "link", "set", "lo", "up")
        self._in(pid, "hostname", f"host{i}")
        return pid

    def address(self, i):
        return f"10.77.0.{i + 1}"

    def start(self, i, command, **kwargs):
        """A process on host i."""
        return subprocess.Popen([*self._enter(self.hosts[i]), *command], **kwargs)

    def cut(self, i):
        """Nothing comes to host i or from it any more."""
        self._in(self.switch, "ip", "link", "set", f"link{i}", "down")

    def mend(self, i):
        self._in(self.switch, "ip", "link", "set", f"link{i}", "up")

    def close(self):
        for holder in self.holders:
            holder.kill()
            holder.wait()
            holder.stdout.close()
