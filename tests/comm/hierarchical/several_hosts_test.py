#!/usr/bin/env python3
"""Ranks on several hosts, which are network namespaces: what they compute, and what they say when the network fails."""
import itertools
import os
import sys
import threading
import time
import unittest

sys.path.insert(0, "tests")
import junit  # noqa: E402
import network  # noqa: E402

WHY_NOT = network.enter()
PROGRAM = os.path.abspath("tests/comm/hierarchical/hosts_program")
PORTS = itertools.count(29500)


class Run:
    """`layout` gives the global ranks of each host, by local rank; the master is the host of rank 0."""

    def __init__(self, hosts, layout, *args, timeout_ms=60000, method=(), master=None, start=True, **env):
        self.world = sum(map(len, layout))
        self.place = {rank: (host, local) for host, ranks in enumerate(layout) for local, rank in enumerate(ranks)}
        self.hosts, self.layout, self.port = hosts, layout, next(PORTS)
        self.master = master or hosts[self.place[0][0]].address
        self.command = [PROGRAM, *args, str(timeout_ms), *method]
        self.env, self.processes = env, {}
        for rank in sorted(self.place) if start else ():
            self.start(rank)

    def start(self, rank, **env):
        host, local = self.place[rank]
        self.processes[rank] = self.hosts[host].start(
            self.command, **{"RANK": str(rank), "WORLD_SIZE": str(self.world), "LOCAL_RANK": str(local),
                             "LOCAL_WORLD_SIZE": str(len(self.layout[host])), "MASTER_ADDR": self.master,
                             "MASTER_PORT": str(self.port), "TORCH_CPP_LOG_LEVEL": "ERROR", **self.env, **env})

    def finish(self, seconds=200):
        """The lines of each rank; its code is in `codes`."""
        lines, self.codes, self.stderr = {}, {}, {}
        deadline = time.monotonic() + seconds
        for rank, process in self.processes.items():
            out, err = process.communicate(timeout=max(1, deadline - time.monotonic()))
            lines[rank], self.stderr[rank], self.codes[rank] = out.splitlines(), err, process.returncode
        return lines

    def wait_for(self, text):
        """Until every rank has said it; lines before are dropped."""
        def read(process):
            for line in process.stdout:
                if line.strip() == text:
                    return
        readers = [threading.Thread(target=read, args=(p,)) for p in self.processes.values()]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()


@unittest.skipIf(WHY_NOT, WHY_NOT)
class SeveralHosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.hosts = network.Hosts(3)

    @classmethod
    def tearDownClass(cls):
        cls.hosts.close()

    def succeed(self, run):
        lines = run.finish()
        self.assertEqual(set(run.codes.values()), {0}, (lines, run.stderr))
        return lines

    def errors(self, run, seconds=60):
        lines = run.finish(seconds)
        for rank, said in lines.items():
            self.assertTrue(said and said[-1].startswith("error "), (rank, said, run.stderr[rank]))
        return {rank: said[-1] for rank, said in lines.items()}

    def test_every_operation_equals_gloos_whatever_rank_is_where(self):
        for layout in ([[0, 1], [2, 3]], [[1, 3], [0, 2]], [[2, 0], [1]], [[0, 1, 2]], [[3], [0, 1], [4, 2]]):
            with self.subTest(layout):
                backend = "auto" if len(layout) > 1 else "hierarchical"
                lines = self.succeed(Run(self.hosts, layout, "collectives", backend))
                for said in lines.values():
                    self.assertTrue(said[0].endswith("over hierarchical"), said)

    def test_hosts_share_no_memory_and_ranks_alone_on_theirs_take_gloo(self):
        for error in self.errors(Run(self.hosts, [[0], [1]], "join", "shm")).values():
            self.assertIn("rank 0 is out of reach on this host", error)
        for said in self.succeed(Run(self.hosts, [[0], [1], [2]], "join", "auto")).values():
            self.assertTrue(said[0].endswith("over gloo"), said)
        for said in self.succeed(Run(self.hosts, [[0], [1], [2]], "collectives", "hierarchical")).values():
            self.assertTrue(said[0].endswith("over hierarchical"), said)

    def test_training_equals_that_over_gloo_and_local_ranks_are_not_taken_for_global_ones(self):
        def parameters(backend):
            lines = self.succeed(Run(self.hosts, [[1, 3], [0, 2]], "train", backend))
            for epoch in (1, 2):
                shares = [list(map(int, lines[rank][epoch].split()[1:])) for rank in range(4)]
                self.assertEqual(sorted(sum(shares, [])), list(range(128)), "shares are disjoint and make up all")
            printed = {rank: [line for line in said if line.startswith("parameters")] for rank, said in lines.items()}
            self.assertEqual({rank: len(said) for rank, said in printed.items()}, {0: 1, 1: 0, 2: 0, 3: 0})
            self.assertEqual([said[0].split(" over")[0] for _, said in sorted(lines.items())],
                             ["rank 0 local 0", "rank 1 local 0", "rank 2 local 1", "rank 3 local 1"])
            return list(map(float, printed[0][0].split()[1:]))
        ours, gloos = parameters("hierarchical"), parameters("gloo")
        self.assertEqual(len(ours), 84)
        for a, b in zip(ours, gloos):
            self.assertAlmostEqual(a, b, delta=1e-6)

    def test_a_cut_link_ends_both_sides_and_names_who_is_out_of_reach(self):
        for backend, timeout_ms in (("hierarchical", 600000), ("gloo", 600000), ("hierarchical", 5000)):
            with self.subTest(f"{backend} {timeout_ms}"):
                run = Run(self.hosts, [[0, 1], [2, 3]], "loop", backend, timeout_ms=timeout_ms)
                run.wait_for("going")
                self.hosts[1].link(up=False)
                try:
                    errors = self.errors(run)
                finally:
                    self.hosts[1].link(up=True)
                for rank in (0, 1):
                    self.assertRegex(errors[rank], "rank 2, 3 is gone|did not come: 2, 3|did not come: 3, 2", errors)
                for rank in (2, 3):
                    self.assertRegex(errors[rank], "rank 0", errors)

    def test_a_cut_link_ends_sends_and_receives(self):
        for backend in ("hierarchical", "gloo"):
            with self.subTest(backend):
                run = Run(self.hosts, [[0, 1], [2, 3]], "circle", backend, timeout_ms=600000)
                run.wait_for("going")
                self.hosts[1].link(up=False)
                try:
                    errors = self.errors(run)
                finally:
                    self.hosts[1].link(up=True)
                self.assertIn("RECV from rank 3 (Float [1000]): rank 3 is gone: no heartbeat", errors[0])
                self.assertRegex(errors[1], "rank 0|rank [23] is gone")  # it waits for rank 0, which has ended by then
                for rank in (2, 3):
                    self.assertIn("the store does not answer", errors[rank])

    def test_a_dead_rank_is_named_on_all_hosts(self):
        run = Run(self.hosts, [[1, 3], [0, 2]], "loop", "hierarchical")
        run.wait_for("going")
        victim = run.processes.pop(3)
        victim.kill()
        victim.communicate()
        for error in self.errors(run).values():
            self.assertIn("rank 3 is gone", error)

    def test_a_rank_that_does_not_come_is_named_with_where_the_others_are(self):
        run = Run(self.hosts, [[0, 1], [2, 3]], "join", "auto", timeout_ms=7000, start=False, TORCH_CPP_LOG_LEVEL="WARNING")
        for rank in (0, 1, 2):
            run.start(rank)
        errors = self.errors(run)
        self.assertIn("so far of 4 ranks these did not come: 3; here are 0, 1 on host0; 2 on host1", run.stderr[0])
        self.assertNotIn("socket.cpp", run.stderr[0].split("so far")[0], "c10d says nothing of its own about it")
        self.assertIn("of 4 ranks these did not come: 3; here are 0, 1 on host0; 2 on host1",
                      " ".join(errors.values()))

    def test_interfaces_are_chosen_by_name(self):
        for env in ({"LOCKSTEP_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth9"}, {"GLOO_SOCKET_IFNAME": "eth0"}):
            for backend in ("gloo", "hierarchical"):
                self.succeed(Run(self.hosts, [[0, 1], [2]], "join", backend, **env))
        for name in ("LOCKSTEP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            errors = self.errors(Run(self.hosts, [[0], [1]], "join", "gloo", timeout_ms=4000, **{name: "eth9"}))
            for error in errors.values():
                self.assertIn(f"{name}=eth9: there is no interface eth9 with an address here; there are: eth0, lo", error)

    def test_a_master_that_is_told_localhost_is_reached_all_the_same(self):
        # As PyTorchJob tells its master pod. Who has chosen an interface says its address as well.
        for layout in ([[0], [1]], [[0, 1], [2]], [[0, 2], [1, 3]]):
            for env in ({}, {"LOCKSTEP_SOCKET_IFNAME": "eth0"}):
                with self.subTest(f"{layout} {env}"):
                    run = Run(self.hosts, layout, "join", "auto", start=False)
                    for rank in run.place:
                        run.start(rank, **({"MASTER_ADDR": "localhost"} if rank in layout[0] else env))
                    self.succeed(run)

    def test_a_host_whose_name_is_loopback_is_reached_all_the_same(self):
        # Debian's default: the own name is 127.0.1.1, the others' are known.
        names = {host.name: host.address for host in self.hosts}
        for host in self.hosts:
            others = "".join(f"{address} {name}\n" for name, address in names.items() if name != host.name)
            if not host.resolves(f"127.0.1.1 {host.name}\n{others}"):
                self.skipTest("/etc/hosts can't be replaced here")
        for layout in ([[0], [1]], [[1, 3], [0, 2]]):
            master = "host0" if 0 in layout[0] else "host1"
            self.succeed(Run(self.hosts, layout, "collectives", "auto", master=master))
        # With a store that has no address, the names are all that there is.
        folder = os.environ.get("TEST_TMPDIR", "/tmp")
        self.succeed(Run(self.hosts, [[0], [1]], "join", "auto", method=[f"file://{folder}/store.{os.getpid()}"]))

    def test_ipv6_in_master_addr_and_in_a_url(self):
        address = self.hosts[0].address6
        for master in (address, f"[{address}]"):
            self.succeed(Run(self.hosts, [[0, 1], [2]], "join", "auto", master=master))
        self.succeed(Run(self.hosts, [[0, 1], [2]], "join", "gloo", method=[f"tcp://[{address}]:29499"]))
        errors = self.errors(Run(self.hosts, [[0], [1]], "join", "gloo", method=[f"tcp://{address}:29499"]))
        self.assertIn("an IPv6 address goes in brackets", errors[0])

    def test_a_master_that_comes_up_late_is_waited_for(self):
        run = Run(self.hosts, [[0], [1]], "join", "auto", start=False)
        # Its host isn't there yet, which the kernel says at once; then the host is, and after that the program.
        knock = ("import errno, socket, sys; s = socket.socket(); "
                 f"sys.exit(s.connect_ex(('{self.hosts[0].address}', {run.port})) != errno.EHOSTUNREACH)")
        self.hosts[0].link(up=False)
        try:
            self.hosts[1].start(["ip", "neigh", "flush", "all"]).communicate()
            run.start(1)
            process = self.hosts[1].start([sys.executable, "-c", knock])
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0)
        finally:
            self.hosts[0].link(up=True)
        self.assertIsNone(run.processes[1].poll())
        run.start(0)
        self.succeed(run)

    def test_a_master_that_never_comes_is_named(self):
        run = Run(self.hosts, [[0], [1]], "join", "auto", timeout_ms=12000, start=False)
        run.start(1)
        error = self.errors(run)[1]
        self.assertIn(f"no store at {self.hosts[0].address}:{run.port} so far", run.stderr[1])
        self.assertIn(f"no store at {self.hosts[0].address}:{run.port}", error)
        self.assertIn("rank 0 holds it", error)

    def test_a_master_whose_name_comes_up_late_is_waited_for(self):
        name = "late-master"
        for host in self.hosts:
            if not host.resolves(""):
                self.skipTest("/etc/hosts can't be replaced here")
        run = Run(self.hosts, [[0], [1]], "join", "auto", master=name, timeout_ms=120000)
        for process in run.processes.values():
            # When they say that they wait, they have tried for some seconds.
            self.assertTrue(any(f"host {name} can't be resolved so far" in line for line in process.stderr))
        for host in self.hosts:
            host.resolves(f"{self.hosts[0].address} {name}\n")
        self.succeed(run)
        run = Run(self.hosts, [[0], [1]], "join", "auto", master="no-master", timeout_ms=2000)
        for error in self.errors(run).values():
            self.assertIn("host no-master can't be resolved: ", error)

    def test_a_port_that_may_not_be_had_is_named(self):
        run = Run(self.hosts, [[0], [1]], "join", "auto", timeout_ms=4000, start=False)
        run.port = 80
        run.command = ["setpriv", "--bounding-set=-net_bind_service", *run.command]
        run.start(0)
        self.assertIn("rank 0 can't hold the store at port 80 of this host: ", self.errors(run)[0])

    def test_a_taken_port_is_named(self):
        taker = self.hosts[0].start([sys.executable, "-c", "import signal, socket; s = socket.create_server(('', 29400)); "
                                     "print(flush=True); signal.pause()"])
        taker.stdout.readline()
        run = Run(self.hosts, [[0], [1]], "join", "auto", timeout_ms=4000, start=False)
        run.port = 29400
        run.start(0)
        self.assertIn(f"port 29400 on {self.hosts[0].address} is in use", self.errors(run)[0])


if __name__ == "__main__":
    junit.main()
