#!/usr/bin/env bash
# Installs the launchers that //tests/comm:launched_test and :slurm_test start, as root on Debian; elsewhere, or where they
# can't be had, those cases are skipped, and say so.
set -euo pipefail
packages=()
command -v mpirun.openmpi >/dev/null || packages+=(openmpi-bin)
command -v mpiexec.hydra >/dev/null || packages+=(mpich)
command -v slurmd >/dev/null || [ -x /usr/sbin/slurmd ] || packages+=(slurm-wlm munge)
command -v ip >/dev/null || [ -x /sbin/ip ] || packages+=(iproute2)
[ ${#packages[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "missing: ${packages[*]}; on Debian: apt-get install --no-install-recommends ${packages[*]}" >&2
  exit 1
fi
apt-get update >/dev/null
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}" >/dev/null
