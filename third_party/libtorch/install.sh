#!/usr/bin/env bash
# Downloads wheels, pinned by hash, and unpacks headers and libraries into a folder shared by all workspaces.
#   install.sh REQUIREMENTS CACHE_DIR       prints the folder; lib/ in it, and for LibTorch include/ and version.py
set -euo pipefail
requirements=$1 cache=$2
key=$(sha256sum "$requirements" "$0" | cut -d ' ' -f 1 | sha256sum | cut -c 1-16)
target=$cache/wheels-$key
if [ ! -e "$target/complete" ]; then
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/unpack.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  # The tag is named because a newer system Python has no wheel of its own; nothing of it is ever imported.
  python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --require-hashes \
    --only-binary=:all: --python-version 311 --implementation cp --abi cp311 --abi none \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 --dest "$work" -r "$requirements" >&2
  python3 - "$work" <<'P' >&2
import glob, os, re, shutil, sys, zipfile

work = sys.argv[1]
TORCH = re.compile(r"torch/(include/.*[^/]|version\.py|lib/lib(?!torch_python|shm)[^/]*\.so[^/]*)$")
NVIDIA = re.compile(r"nvidia/.*/lib(cudart|cufile|cupti|cusparseLt|nvshmem_host)\.so\.\d+$")
os.makedirs(work + "/out/lib")
for wheel in glob.glob(work + "/*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if TORCH.match(name):
                path = work + "/out/" + name[len("torch/"):]
            elif NVIDIA.match(name):
                path = work + "/out/lib/" + os.path.basename(name)
            else:
                continue
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with archive.open(name) as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target)
    os.remove(wheel)
P
  : >"$work/out/complete"
  # Another build may have finished first; its folder is as good as ours.
  mv -T "$work/out" "$target" 2>/dev/null || [ -e "$target/complete" ]
fi
echo "$target"
