"""libpng from the system, as `@libpng//:libpng`."""

load("//third_party:system_library.bzl", "system_library")

def libpng_repository(name):
    system_library(
        name = name,
        package = "libpng-dev",
        headers = ["png.h"],
        targets = {"": ["libpng:-lpng"]},
    )
