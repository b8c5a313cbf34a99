"""A repository over a library that the system's package manager installed.

Headers and libraries stay where the system put them (the compiler finds both by itself); the repository only gives
them the labels that the upstream project uses, so that a workspace with its own copy of the project wins.
"""

def _system_library_impl(ctx):
    for header in ctx.attr.headers:
        if not ctx.path("/usr/include/" + header).exists:
            fail("lockstep: {} needs /usr/include/{}; on Debian: apt-get install {}".format(ctx.name, header, ctx.attr.package))
    ctx.file("WORKSPACE", "workspace(name = {})\n".format(repr(ctx.name)))
    for folder, targets in ctx.attr.targets.items():
        lines = ["package(default_visibility = [\"//visibility:public\"])\n"]
        for target in targets:
            name, _, options = target.partition(":")
            link, _, deps = options.partition(":")
            lines.append("cc_library(\n    name = {},\n    linkopts = {},\n    deps = {},\n)\n".format(
                repr(name),
                repr([o for o in link.split(" ") if o]),
                repr([d for d in deps.split(" ") if d]),
            ))
        ctx.file((folder + "/" if folder else "") + "BUILD.bazel", "\n".join(lines))

system_library = repository_rule(
    implementation = _system_library_impl,
    attrs = {
        "package": attr.string(mandatory = True, doc = "Debian's package, named when a header is missing."),
        "headers": attr.string_list(doc = "Files below /usr/include that must exist."),
        "targets": attr.string_list_dict(doc = "Folder to its targets, each `name:link options:deps`."),
    },
)
