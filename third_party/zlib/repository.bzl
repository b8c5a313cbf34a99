"""zlib from the system, as `@zlib//:zlib`."""

load("//third_party:system_library.bzl", "system_library")

def zlib_repository(name):
    system_library(
        name = name,
        package = "zlib1g-dev",
        headers = ["zlib.h"],
        targets = {"": ["zlib:-lz"]},
    )
