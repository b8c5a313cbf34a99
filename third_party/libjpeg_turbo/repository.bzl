"""libjpeg-turbo from the system, as `@libjpeg_turbo//:jpeg`."""

load("//third_party:system_library.bzl", "system_library")

def libjpeg_turbo_repository(name):
    system_library(
        name = name,
        package = "libjpeg62-turbo-dev",
        headers = ["jpeglib.h"],
        targets = {"": ["jpeg:-ljpeg"]},
    )
