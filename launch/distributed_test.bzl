"""A GoogleTest that runs in several ranks, for our own tests and for those of whoever trains with us."""

load("//bazel:cc.bzl", "LOCKSTEP_COPTS")

def lockstep_distributed_test(name, world_size, deps = [], args = [], copts = [], tags = [], **kwargs):
    """Runs a GoogleTest program once in each of `world_size` processes.

    Each process has RANK, WORLD_SIZE and friends set, and meets the others on a port that is kept for this run;
    `lockstep::InitProcessGroup()` needs no options. The test fails if any rank fails, hangs (until 10 seconds before
    Bazel's timeout) or leaves a process behind. The network outside is out of reach where the system allows that.

    Args:
      name: of the test.
      world_size: number of ranks.
      deps: as for cc_test; GoogleTest and main() come by themselves.
      args: arguments of every rank.
      copts: as for cc_test.
      tags: as for cc_test.
      **kwargs: passed to cc_test.
    """
    native.cc_test(
        name = name,
        args = ["--lockstep_world_size=%d" % world_size] + args,
        copts = LOCKSTEP_COPTS + copts,
        linkstatic = True,
        tags = tags + ["block-network", "cpu:2"],
        deps = deps + [
            Label("//launch:distributed_test_main"),
            Label("@com_google_googletest//:gtest"),
        ],
        **kwargs
    )

def lockstep_distributed_tests(name, world_sizes, srcs, deps = [], copts = [], **kwargs):
    """The same test in several world sizes, compiled once: `<name>_1_rank_test`, `<name>_2_ranks_test`, …

    Args:
      name: prefix of the tests' names.
      world_sizes: numbers of ranks.
      srcs: as for cc_test.
      deps: as for lockstep_distributed_test.
      copts: as for cc_test.
      **kwargs: passed to lockstep_distributed_test.
    """
    native.cc_library(
        name = name + "_cases",
        testonly = True,
        srcs = srcs,
        alwayslink = True,
        copts = LOCKSTEP_COPTS + copts,
        linkstatic = True,
        deps = deps + [Label("@com_google_googletest//:gtest")],
    )
    for world_size in world_sizes:
        lockstep_distributed_test(
            name = "%s_%d_rank%s_test" % (name, world_size, "" if world_size == 1 else "s"),
            world_size = world_size,
            deps = [":" + name + "_cases"],
            **kwargs
        )
