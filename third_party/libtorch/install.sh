#!/usr/bin/env bash
# Downloads LibTorch's wheels, pinned by hash, and unpacks headers and libraries into a folder shared by all workspaces.
#   install.sh REQUIREMENTS CACHE_DIR       prints the folder that holds include/, lib/ and version.txt
set -euo pipefail
requirements=$1 cache=$2
key=$(sha256sum "$requirements" "$0" | sha256sum | cut -c1-16)
target=$cache/libtorch-$key
if [ ! -e "$target/complete" ]; then
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/unpack.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  # The tag is named because a newer system Python has no wheel of its own; nothing of it is ever imported.
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
    --python-version 311 --implementation cp --abi cp311 --abi none --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --no-cache-dir --dest "$work" -r "$requirements" >&2
  python3 - "$work" <<'P' >&2
import glob, os, shutil, sys, zipfile
work = sys.argv[1]
for wheel in glob.glob(work + '/*.whl'):
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            keep = name.startswith(('torch/include/', 'torch/lib/')) or name == 'torch/version.py'
            if name.startswith('torch/lib/') and ('python' in name or 'shm' in name.split('/')[2]):
                keep = 'nvshmem' in name
            if keep and not name.endswith('/'):
                z.extract(name, work + '/out')
            elif name.startswith('nvidia/cu13/lib/lib') and name.split('/')[-1] in ('libcudart.so.13', 'libcupti.so.13'):
                os.makedirs(work + '/out/torch/lib', exist_ok=True)
                with z.open(name) as src, open(work + '/out/torch/lib/' + os.path.basename(name), 'wb') as dst:
                    shutil.copyfileobj(src, dst)
    os.remove(wheel)
P
  : >"$work/out/torch/complete"
  # Another build may have finished first; its folder is as good as ours.
  mv -T "$work/out/torch" "$target" 2>/dev/null || [ -e "$target/complete" ]
fi
echo "$target"
