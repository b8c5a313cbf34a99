#!/usr/bin/env python3
"""lockstep_run on several hosts, which are network namespaces."""
import os
import signal
import sys
import tempfile
import time
import unittest

sys.path[:0] = ["tests"]
import junit  # noqa: E402
import network  # noqa: E402

WHY_NOT = network.enter()

PROGRAM = os.path.abspath("launch/lockstep_run")
QUICK = "keep_alive_interval=0.2,keep_alive_max_attempt=5"


class Agent:
    """A launcher on a host, with its output in files."""

    def __init__(self, hosts, host, *args, body, **env):
        self.out, self.err = (tempfile.NamedTemporaryFile("w+", dir=os.environ.get("TEST_TMPDIR")) for _ in range(2))
        self.process = hosts[host].start([PROGRAM, *args, "sh", "-c", body], stdout=self.out, stderr=self.err, **env)

    def stdout(self):
        return open(self.out.name).read()

    def stderr(self):
        return open(self.err.name).read()

    def lines(self):
        return sorted(line.split(": ", 1)[1] for line in self.stdout().splitlines() if ": " in line)

    def wait(self, seconds=40):
        return self.process.wait(seconds)

    def wait_for(self, text, times=1, seconds=30):
        deadline = time.time() + seconds
        while (self.stdout() + self.stderr()).count(text) < times:
            if time.time() > deadline or self.process.poll() is not None:
                raise AssertionError(f"no '{text}' from it: {self.stdout()} {self.stderr()}")
            time.sleep(0.02)


@unittest.skipIf(WHY_NOT, WHY_NOT)
class SeveralHosts(unittest.TestCase):
    def setUp(self):
        self.hosts = network.Hosts(3)
        self.agents = []

    def tearDown(self):
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.process.kill()
                agent.process.wait()
        self.hosts.close()

    def start(self, host, *args, body, **env):
        self.agents.append(Agent(self.hosts, host, *args, body=body, **env))
        return self.agents[-1]

    def static(self, host, *args, body, nodes=2, nproc=2, **env):
        return self.start(host, f"--nnodes={nodes}", f"--node_rank={host}", f"--master_addr={self.hosts[0].address}",
                          "--master_port=29501", f"--nproc_per_node={nproc}", *args, body=body, **env)

    def c10d(self, host, *args, body, nodes="2", nproc=2, conf="", **env):
        return self.start(host, f"--nnodes={nodes}", "--rdzv_backend=c10d", f"--rdzv_endpoint={self.hosts[0].address}:29502",
                          f"--nproc_per_node={nproc}", f"--rdzv_conf={QUICK}{conf and ','}{conf}", *args, body=body, **env)

    SHOW = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK $MASTER_ADDR $MASTER_PORT $(hostname)"

    def test_numbers_are_given_by_node_rank(self):
        agents = [self.static(host, body=self.SHOW) for host in (1, 0)]  # the master comes late
        self.assertEqual([agent.wait() for agent in agents], [0, 0], agents[0].stderr() + agents[1].stderr())
        lines = agents[1].lines() + agents[0].lines()
        ports = {line.split()[8] for line in lines}
        self.assertEqual(len(ports), 1)
        port = ports.pop()
        self.assertEqual(lines, [f"{2 * n + r} 4 {r} 2 {n} 2 {2 * n + r} 10.77.0.1 {port} host{n}" for n in (0, 1) for r in (0, 1)])

    def test_a_master_that_knows_itself_as_localhost_is_reached(self):
        agents = [self.start(host, "--nnodes=2", f"--node_rank={host}", "--master_addr=" + ("10.77.0.1" if host else "localhost"),
                             "--master_port=29501", body="echo $MASTER_ADDR") for host in (0, 1)]
        self.assertEqual([agent.wait() for agent in agents], [0, 0])
        self.assertEqual([line for agent in agents for line in agent.lines()], ["10.77.0.1"] * 2)

    def test_several_launchers_of_one_host_may_meet(self):
        agents = [self.c10d(0, nproc=1, body="echo $RANK") for _ in range(2)]
        self.assertEqual([agent.wait() for agent in agents], [0, 0], agents[0].stderr() + agents[1].stderr())
        self.assertEqual(sorted(line for agent in agents for line in agent.lines()), ["0", "1"])

    def test_hosts_may_have_different_numbers_of_ranks(self):
        agents = [self.static(host, nodes=3, nproc=host + 1, body=self.SHOW) for host in (0, 1, 2)]
        self.assertEqual([agent.wait() for agent in agents], [0, 0, 0])
        seen = [line.split()[:6] for agent in agents for line in agent.lines()]
        self.assertEqual(seen, [[str(x) for x in (r, 6, local, n + 1, n, 3)]
                                for r, (n, local) in enumerate((n, local) for n in range(3) for local in range(n + 1))])

    def test_c10d_gives_numbers_out(self):
        agents = [self.c10d(host, "--rdzv_id=mine", body=self.SHOW + " $TORCHELASTIC_RUN_ID") for host in (2, 0)]
        self.assertEqual([agent.wait() for agent in agents], [0, 0], agents[0].stderr() + agents[1].stderr())
        lines = [line.split() for agent in agents for line in agent.lines()]
        self.assertEqual(sorted(int(line[0]) for line in lines), [0, 1, 2, 3])
        self.assertEqual({line[7] for line in lines}, {"10.77.0.1"})
        self.assertEqual({line[-1] for line in lines}, {"mine"})

    def test_a_failure_on_one_host_ends_both_and_is_named_on_both(self):
        agents = [self.static(host, body='test $RANK = 3 && echo "no memory" >&2 && exit 7; exec sleep 100') for host in (0, 1)]
        self.assertEqual([agent.wait() for agent in agents], [7, 7])
        for agent in agents:
            self.assertRegex(agent.stderr(), r"first failure: rank 3 \(process \d+\) ended with code 7 on host1, local rank 1")
            self.assertIn("no memory", agent.stderr())

    def test_a_killed_rank_starts_all_hosts_again(self):
        body = ('echo $RANK $TORCHELASTIC_RESTART_COUNT $MASTER_PORT; test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0; '
                'test $RANK = 2 && kill -9 $$; exec sleep 100')
        agents = [self.static(host, "--max_restarts=1", body=body) for host in (0, 1)]
        self.assertEqual([agent.wait() for agent in agents], [0, 0], agents[0].stderr())
        seen = [line.split() for line in agents[0].lines() + agents[1].lines()]
        self.assertEqual([line[:2] for line in seen], [[r, n] for r in "0123" for n in "01"])
        self.assertEqual(len({line[2] for line in seen}), 2, "one port for each start")
        self.assertIn("was killed by signal 9 (Killed) on host1", agents[0].stderr())

    def test_restarts_are_used_up(self):
        agents = [self.c10d(host, "--max_restarts=1", body="test $RANK = 3 && exit 5; exec sleep 100") for host in (0, 1)]
        self.assertEqual([agent.wait() for agent in agents], [5, 5])
        self.assertEqual(agents[0].stderr().count("all hosts start again"), 1)

    def test_a_host_that_is_cut_off_is_named(self):
        agents = [self.static(host, f"--rdzv_conf={QUICK}", body="echo ready; exec sleep 100") for host in (0, 1)]
        for agent in agents:
            agent.wait_for("ready", 2)
        self.hosts[1].link(up=False)
        self.assertEqual([agent.wait() for agent in agents], [1, 1])
        self.assertRegex(agents[0].stderr(), r"host host1 \(node 1\) has gone: nothing was heard of it for 1 s")
        self.assertIn("the launcher at 10.77.0.1:29501, where the hosts meet, has gone", agents[1].stderr())

    def test_a_meeting_that_stands_still_is_lost_to_others_and_not_to_itself(self):
        agents = [self.static(host, f"--rdzv_conf={QUICK}", body="echo ready; exec sleep 100") for host in (0, 1)]
        for agent in agents:
            agent.wait_for("ready", 2)
        agents[0].process.send_signal(signal.SIGSTOP)
        self.assertEqual(agents[1].wait(), 1)
        self.assertIn("the launcher at 10.77.0.1:29501, where the hosts meet, has gone", agents[1].stderr())
        agents[0].process.send_signal(signal.SIGCONT)
        self.assertEqual(agents[0].wait(), 1, "half of the ranks were ended")
        self.assertIn("host host1 (node 1) has gone: its launcher has ended", agents[0].stderr())
        self.assertNotIn("where the hosts meet, has gone", agents[0].stderr())

    def test_hosts_keep_to_the_times_of_the_meeting(self):
        agents = [self.static(0, body="exec sleep 2"), self.static(1, f"--rdzv_conf={QUICK}", body="exec sleep 2")]
        self.assertEqual([agent.wait() for agent in agents], [0, 0], agents[1].stderr())

    GO_ON = "echo $RANK of $WORLD_SIZE; test -e $STOP && exit 0; while test ! -e $STOP; do sleep 0.05; done"

    def stop_file(self):
        return os.path.join(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")), "stop")

    def test_the_others_go_on_without_a_host_that_goes_away(self):
        stop = self.stop_file()
        agents = [self.c10d(host, "--max_restarts=1", nodes="2:3", nproc=1, conf="last_call_timeout=0.5", body=self.GO_ON, STOP=stop)
                  for host in (0, 1, 2)]
        for agent in agents:
            agent.wait_for("of 3")
        agents[2].process.kill()
        for agent in agents[:2]:
            agent.wait_for("of 2")
        open(stop, "w").close()
        self.assertEqual([agent.wait() for agent in agents[:2]], [0, 0])
        self.assertRegex(agents[0].stderr(), r"host host2 \(node \d\) has gone: its launcher has ended")

    def test_a_late_host_is_taken_in_without_a_restart_counted(self):
        stop = self.stop_file()
        kwargs = dict(nodes="1:2", nproc=1, conf="last_call_timeout=0.2", body=self.GO_ON, STOP=stop)
        first = self.c10d(0, **kwargs)
        first.wait_for("0 of 1")
        second = self.c10d(1, **kwargs)
        second.wait_for("1 of 2")
        first.wait_for("0 of 2")
        open(stop, "w").close()
        self.assertEqual([first.wait(), second.wait()], [0, 0], first.stderr() + second.stderr())
        self.assertIn("host host1 has come", first.stderr())

    def test_a_host_with_expendable_ranks_alone_may_go(self):
        stop = self.stop_file()
        agents = [self.static(host, "--expendable_from=2", f"--rdzv_conf={QUICK}", body=self.GO_ON, STOP=stop) for host in (0, 1)]
        for agent in agents:
            agent.wait_for("of 4", 2)
        agents[1].process.kill()
        agents[0].wait_for("host host1 (node 1) has gone: its launcher has ended; the others go on")
        open(stop, "w").close()
        self.assertEqual(agents[0].wait(), 0, agents[0].stderr())
        self.assertEqual(agents[0].stdout().count("of 4"), 2, "nothing was started again")

    def test_a_host_that_comes_back_takes_its_place(self):
        stop = self.stop_file()
        first, second = (self.static(host, "--max_restarts=2", f"--rdzv_conf={QUICK},timeout=30", body=self.GO_ON, STOP=stop)
                         for host in (0, 1))
        first.wait_for("of 4", 2)
        second.wait_for("of 4", 2)
        second.process.kill()
        first.wait_for("all hosts start again (1 of 2 restarts)")
        again = self.static(1, "--max_restarts=2", f"--rdzv_conf={QUICK},timeout=30", body=self.GO_ON, STOP=stop)
        again.wait_for("of 4", 2)
        open(stop, "w").close()
        self.assertEqual([first.wait(), again.wait()], [0, 0], first.stderr() + again.stderr())

    def test_without_enough_hosts_it_ends_and_says_who_is_missing(self):
        agents = [self.static(host, "--rdzv_conf=timeout=1", nodes=3, body="true") for host in (0, 1)]
        self.assertEqual([agent.wait() for agent in agents], [1, 1])
        self.assertRegex(agents[0].stderr(), r"of 3 hosts 2 came in time; missing: --node_rank 2; here: host\d, host\d")
        alone = self.static(1, "--rdzv_conf=timeout=0.3", body="true")
        self.assertEqual(alone.wait(), 1)
        self.assertIn("no launcher at 10.77.0.1:29501, where the hosts meet", alone.stderr())

    def test_a_signal_is_heard_while_a_name_server_says_nothing(self):
        folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        for name, text in (("resolv.conf", "nameserver 127.0.0.1\noptions timeout:30 attempts:5\n"), ("nsswitch.conf", "hosts: files dns\n")):
            with open(os.path.join(folder, name), "w") as file:
                file.write(text)
            if not os.path.exists("/etc/" + name) or self.hosts[1].start(["mount", "--bind", file.name, "/etc/" + name]).wait() != 0:
                self.skipTest(f"/etc/{name} can't be replaced here")
        for args in (["--master_addr=no.such.host", "--node_rank=1"], ["--rdzv_backend=c10d", "--rdzv_endpoint=no.such.host:29502"]):
            server = self.hosts[1].start([sys.executable, "-c", "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 53))\n"
                                          "print(flush=True); s.recv(999); print('asked', flush=True)\nwhile True: s.recv(999)"])
            server.stdout.readline()
            agent = self.start(1, "--nnodes=2", *args, body="true")
            self.assertEqual(server.stdout.readline(), "asked\n")
            agent.process.send_signal(signal.SIGTERM)
            self.assertEqual(agent.wait(), 128 + signal.SIGTERM)
            server.kill()
            server.wait()

    def test_launchers_that_do_not_belong_together_are_refused(self):
        first = self.static(0, body=self.GO_ON, STOP=self.stop_file())
        other = self.static(1, "--rdzv_id=other", body="true")
        self.assertEqual(other.wait(), 1)
        why = "the run that meets here has --rdzv_id=none, and this launcher --rdzv_id=other"
        self.assertIn(why, other.stderr())
        first.wait_for(f"the launcher of host host1 was refused: {why}")
        twin = self.start(2, "--nnodes=2", "--node_rank=1", "--master_addr=10.77.0.1", "--master_port=29501", body="sleep 100")
        again = self.start(1, "--nnodes=2", "--node_rank=1", "--master_addr=10.77.0.1", "--master_port=29501", body="sleep 100")
        deadline = time.time() + 20
        while twin.process.poll() is None and again.process.poll() is None and time.time() < deadline:
            time.sleep(0.02)
        self.assertIn("--node_rank=1 is taken by host", twin.stderr() + again.stderr())
        first.wait_for("was refused: --node_rank=1 is taken by host")
        first.process.kill()

    def test_a_meeting_place_that_another_program_has_is_said(self):
        for body in ("c.recv(1)", "c.sendall(b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n')"):
            taker = self.hosts[0].start([sys.executable, "-c", "import socket; s = socket.create_server(('', 29501)); "
                                         f"print(flush=True); c, _ = s.accept(); {body}"])
            taker.stdout.readline()
            agent = self.static(1, f"--rdzv_conf={QUICK}", body="true")
            self.assertEqual(agent.wait(), 1)
            self.assertIn("what listens at 10.77.0.1:29501, where the hosts meet, is no lockstep_run", agent.stderr())
            taker.communicate(timeout=20)

    def test_the_meeting_place_may_be_an_ipv6_address(self):
        agents = [self.start(host, "--nnodes=2", f"--node_rank={host}", f"--master_addr=[{self.hosts[0].address6}]",
                             "--master_port=29501", body="echo $MASTER_ADDR") for host in (0, 1)]
        self.assertEqual([agent.wait() for agent in agents], [0, 0], agents[0].stderr() + agents[1].stderr())
        self.assertEqual([line for agent in agents for line in agent.lines()], [self.hosts[0].address6] * 2)

    def test_a_signal_to_one_launcher_ends_all(self):
        body = "trap 'echo saved; exit 75' TERM; echo ready; while true; do sleep 0.05; done"
        agents = [self.static(host, "--max_restarts=3", body=body) for host in (0, 1)]
        for agent in agents:
            agent.wait_for("ready", 2)
        launcher = self.launcher_of(agents[1])
        os.kill(launcher, signal.SIGTERM)
        self.assertEqual([agent.wait() for agent in agents], [75, 75])
        self.assertEqual(sum(agent.stdout().count("saved") for agent in agents), 4)

    def test_the_end_of_the_meetings_launcher_ends_all(self):
        first = self.c10d(0, body="true")
        second = self.c10d(1, body="echo ready; exec sleep 100")
        second.wait_for("ready", 2)
        first.wait_for("this is node 0")
        launcher = self.launcher_of(first)
        while open(f"/proc/{launcher}/task/{launcher}/children").read():
            time.sleep(0.02)  # its own ranks end
        os.kill(launcher, signal.SIGTERM)
        self.assertEqual(first.wait(), 128 + signal.SIGTERM)
        self.assertEqual(second.wait(), 1)
        self.assertIn("has ended", second.stderr())

    def launcher_of(self, agent):
        return agent.process.pid  # nsenter becomes it

    def test_roles_are_counted_apart(self):
        show = "echo $RANK $ROLE_NAME $ROLE_RANK $ROLE_WORLD_SIZE"
        agents = [self.static(host, f"--role={role}", nodes=3, nproc=1, body=show) for host, role in enumerate(("a", "b", "a"))]
        self.assertEqual([agent.wait() for agent in agents], [0] * 3)
        self.assertEqual([line for agent in agents for line in agent.lines()],
                         ["0 a 0 2", "1 b 0 1", "2 a 1 2"])


if __name__ == "__main__":
    junit.main()
