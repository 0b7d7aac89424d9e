#!/usr/bin/env bash
# Install Debian packages that are missing; by default those that the tests call.
#
#   tools/setup_debian.sh [PACKAGE...]
set -euo pipefail

wanted=("$@")
if [ ${#wanted[@]} -eq 0 ]; then
  command -v promtool >/dev/null || wanted+=(prometheus)
  command -v curl >/dev/null || wanted+=(curl)
  command -v openssl >/dev/null || wanted+=(openssl)
  command -v h2load >/dev/null || wanted+=(nghttp2-client)
  command -v chromium >/dev/null || wanted+=(chromium fonts-dejavu-core)
  command -v systemd-analyze >/dev/null || wanted+=(systemd)
fi
[ ${#wanted[@]} -gt 0 ] || exit 0

fail() {
  echo "setup_debian: $*" >&2
  exit 1
}

run=(env DEBIAN_FRONTEND=noninteractive)
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || fail "install these packages first: ${wanted[*]}"
  run=(sudo "${run[@]}")
fi
command -v apt-get >/dev/null || fail "no apt-get here; install the equivalent of: ${wanted[*]}"
# apt does one thing at a time; others that call this meanwhile wait.
run=(flock --close "${BASH_SOURCE[0]}" "${run[@]}")
install=("${run[@]}" apt-get install -y -q --no-install-recommends "${wanted[@]}")
"${install[@]}" >/dev/null 2>&1 ||
  { "${run[@]}" apt-get update -q >/dev/null && "${install[@]}" >/dev/null; } ||
  fail "cannot install: ${wanted[*]}"
