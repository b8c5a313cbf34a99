"""GoogleTest from the system, as `@com_google_googletest//:gtest` and `:gtest_main`."""

load("//third_party:system_library.bzl", "system_library")

def googletest_repository(name):
    system_library(
        name = name,
        package = "libgtest-dev libgmock-dev",
        headers = ["gtest/gtest.h", "gmock/gmock.h"],
        targets = {"": [
            "gtest:-lgmock -lgtest -lpthread",
            "gtest_main:-lgtest_main:@com_google_googletest//:gtest",
        ]},
    )
