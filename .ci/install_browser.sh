#!/usr/bin/env bash
# Installs the browser in which the page of //metrics:report is opened by its test, as root on Debian; elsewhere, or where
# it can't be had, that test is skipped, and says so.
set -euo pipefail
for browser in chromium-headless-shell chromium google-chrome; do
  if command -v "$browser" >/dev/null; then exit 0; fi
done
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "no browser is installed; on Debian: apt-get install chromium-headless-shell" >&2
  exit 1
fi
apt-get update >/dev/null
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium-headless-shell >/dev/null
