#!/usr/bin/env bash
# Installs the Python PyTorch that the benchmarks compare against, of the same version as our LibTorch, into a virtual
# environment of its own, and prints the interpreter's path. Nothing else needs it.
#   install_python_peer.sh [FOLDER]        default: the user's cache folder
set -euo pipefail
target=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/python-peer-2.11.0}
if [ ! -e "$target/complete-3" ]; then
  python3 -m venv "$target" >&2 || { echo "python3-venv is missing: apt-get install python3-venv" >&2; exit 1; }
  pip="$target/bin/python -m pip --disable-pip-version-check"
  $pip install --quiet filelock typing-extensions 'sympy>=1.13.3' networkx jinja2 fsspec setuptools numpy pandas pillow tensorboard >&2
  cuda=${CUDA_HOME:-/usr/local/cuda}/lib64
  if [ -e "$cuda/libcublas.so.13" ] && [ -e "$cuda/libcudnn.so.9" ]; then
    # The wheel's CUDA libraries are the toolkit's; only what the toolkit lacks is downloaded.
    $pip install --quiet --no-deps torch==2.11.0 torchvision==0.26.0 nvidia-cusparselt-cu13==0.8.0 \
      nvidia-nvshmem-cu13==3.4.5 nvidia-cufile nvidia-cuda-cupti==13.0.85 nvidia-cuda-runtime==13.0.96 >&2
  else
    $pip install --quiet torch==2.11.0 torchvision==0.26.0 >&2
  fi
  : >"$target/complete-3"
fi
echo "$target/bin/python"
