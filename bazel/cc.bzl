"""Rules for our own C++ targets: the language standard, the include prefix and static linking, in one place.

The standard is the target's and not a flag of ours, since an embedding workspace never reads our `.bazelrc`.
"""

load("@libtorch//:defs.bzl", "LIBTORCH_CXX_STANDARD")

# Of this repository, below the execution root: empty in our own workspace, external/<name>/ in another.
REPOSITORY_ROOT = Label("//bazel:cc.bzl").workspace_root + "/" if Label("//bazel:cc.bzl").workspace_root else ""

LOCKSTEP_COPTS = ["-std=" + LIBTORCH_CXX_STANDARD]

def lockstep_cc_library(name, copts = [], **kwargs):
    """A library whose headers are included as "lockstep/<package>/<header>"."""
    native.cc_library(
        name = name,
        copts = LOCKSTEP_COPTS + copts,
        include_prefix = "lockstep/" + native.package_name(),
        linkstatic = True,
        **kwargs
    )

def lockstep_cc_binary(name, copts = [], **kwargs):
    native.cc_binary(
        name = name,
        copts = LOCKSTEP_COPTS + copts,
        **kwargs
    )

def lockstep_cc_test(name, copts = [], tags = [], deps = [], **kwargs):
    """A GoogleTest program, kept from the network outside where the sandbox can."""
    native.cc_test(
        name = name,
        copts = LOCKSTEP_COPTS + copts,
        linkstatic = True,
        tags = tags + ["block-network"],
        deps = deps + ["@com_google_googletest//:gtest_main"],
        **kwargs
    )
