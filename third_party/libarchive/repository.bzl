"""libarchive from the system, as `@libarchive//libarchive`."""

load("//third_party:system_library.bzl", "system_library")

def libarchive_repository(name):
    system_library(
        name = name,
        package = "libarchive-dev",
        headers = ["archive.h"],
        targets = {"libarchive": ["libarchive:-larchive"]},
    )
