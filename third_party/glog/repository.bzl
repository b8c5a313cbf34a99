"""glog from the system, as `@com_github_google_glog//:glog`."""

load("//third_party:system_library.bzl", "system_library")

def glog_repository(name):
    system_library(
        name = name,
        package = "libgoogle-glog-dev",
        headers = ["glog/logging.h"],
        targets = {"": ["glog:-lglog"]},
    )
