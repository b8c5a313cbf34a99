"""cairo from the system, as `@cairo//:cairo`."""

load("//third_party:system_library.bzl", "system_library")

def cairo_repository(name):
    system_library(
        name = name,
        package = "libcairo2-dev",
        headers = ["cairo/cairo.h"],
        targets = {"": ["cairo:-lcairo"]},
    )
