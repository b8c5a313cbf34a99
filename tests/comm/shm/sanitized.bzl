"""The package compiled with a sanitizer, and a test of it, without a second configuration of the whole build."""

load("//bazel:cc.bzl", "LOCKSTEP_COPTS")

def sanitized_shm_test(name, sanitizer, srcs, env, data = []):
    """Runs `srcs` against //comm/shm compiled with `-fsanitize=<sanitizer>`, in the exhaustive set.

    Args:
      name: of the test.
      sanitizer: `thread` or `address`.
      srcs: of the test.
      env: of the test; for the sanitizer's options.
      data: of the test.
    """
    flags = ["-fsanitize=" + sanitizer, "-fno-omit-frame-pointer", "-g1"]
    native.cc_library(
        name = name + "_shm",
        testonly = True,
        srcs = [
            "//comm/shm:sources",
            "//comm/shm/internal:sources",
        ],
        # The loops' own file has wide vectors, which are no part of any interface.
        copts = LOCKSTEP_COPTS + flags + ["-Wno-psabi"],
        linkstatic = True,
        tags = ["exhaustive"],
        deps = [
            "//base:error_text",
            "//base:status_macros",
            "//comm:definedness",
            "//comm:flight_recorder",
            "//comm:meeting",
            # For their headers; of their objects none is linked, since those above define all that they do.
            "//comm/shm",
            "//comm/shm/internal:exchange",
            "//comm/shm/internal:mailbox",
            "//comm/shm/internal:work_queue",
            "@com_google_absl//absl/status",
            "@com_google_absl//absl/status:statusor",
            "@com_google_absl//absl/strings",
            "@libtorch//:torch",
        ],
    )
    native.cc_test(
        name = name,
        size = "large",
        srcs = srcs,
        copts = LOCKSTEP_COPTS + flags,
        data = data,
        env = env,
        linkopts = ["-fsanitize=" + sanitizer],
        linkstatic = True,
        tags = [
            "block-network",
            "cpu:2",
            "exhaustive",
        ],
        deps = [
            ":" + name + "_shm",
            "@com_google_googletest//:gtest_main",
            "@libtorch//:torch",
        ],
    )
