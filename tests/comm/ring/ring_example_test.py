#!/usr/bin/env python3
"""The walk-through of the ring prints the blocks that the formula gives."""
import subprocess
import sys
import unittest

sys.path.insert(0, "tests")
import junit  # noqa: E402

PROGRAM = "examples/ring_all_reduce"


def run(*flags):
    return subprocess.run([PROGRAM, *flags], capture_output=True, text=True, timeout=50)


def expected(n):
    """Every rank's blocks after every step, worked out with sets."""
    blocks = [[{r} for _ in range(n)] for r in range(n)]
    states = [("at the start", [[set(b) for b in rank] for rank in blocks])]
    for phase in ("reduce-scatter", "all-gather"):
        for s in range(n - 1):
            sent = [(r, (r - 1 - s if phase == "reduce-scatter" else r - s) % n) for r in range(n)]
            moving = [(b, set(blocks[r][b])) for r, b in sent]
            for r, (b, what) in enumerate(moving):
                to = (r + 1) % n
                blocks[to][b] = blocks[to][b] | what if phase == "reduce-scatter" else what
            states.append((f"{phase}, step {s}", [[set(b) for b in rank] for rank in blocks]))
    lines = []
    for title, ranks in states:
        lines.append(title)
        for r, rank in enumerate(ranks):
            lines.append(f"  rank {r}:  " + "  ".join("+".join(f"{chr(65 + b)}{x}" for x in sorted(who)) for b, who in enumerate(rank)))
    return lines


class Ring(unittest.TestCase):
    def test_prints_every_step(self):
        for n in (1, 2, 3, 4, 5):
            result = run(f"--world_size={n}")
            self.assertEqual(result.returncode, 0, result.stderr)
            lines = result.stdout.splitlines()
            self.assertEqual(lines[:-2], expected(n))
            self.assertEqual(lines[-2], "every rank holds every sum")
            self.assertIn(f"{4 * (n - 1) * 8} bytes in the ring, {2 * (n - 1) * n * 8} bytes the naive way", lines[-1])

    def test_bad_flags(self):
        for flag in ("--world_size=0", "--world_size=x", "--world_size=27", "--size=4"):
            result = run(flag)
            self.assertEqual(result.returncode, 1)
            self.assertEqual(result.stderr.count("\n"), 1)


if __name__ == "__main__":
    junit.main()
