#!/usr/bin/env bash
# Install what tools/make_dist.sh made as a user would, into empty environments, and use it there.
#
#   tools/release_check.sh PYTHON DIRECTORY
#
# PYTHON's environment has a recent pip; DIRECTORY holds the distributions. Each CPython that is here
# gets the wheel that its pip picks, and tritonclient with all extras before or after it. A pure wheel
# is tried beside an older tritonclient, which brings an older protobuf. Packages come from the index.
set -euo pipefail

python="$(realpath -s "$1")" dist="$(realpath "$2")"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
# From here on nothing is taken from the sources by chance.
cd "$work"

# into ENVIRONMENT REQUIREMENT...
into() {
  local environment="$1"
  shift
  "$python" -m pip --python "$work/$environment/bin/python" install -q --disable-pip-version-check "$@"
}

# try ENVIRONMENT EXPECTED: the installed product says that it is so, and works
try() {
  local bin="$work/$1/bin"
  "$python" -m pip --python "$bin/python" check --disable-pip-version-check >/dev/null
  "$bin/triton-lb" version | grep -F "($2)" ||
    { echo "release_check: $("$bin/triton-lb" version) is not $2" && return 1; }
  "$bin/python" "$root/tools/release_smoke.py"
}

for version in 3.11 3.12 3.13; do
  target="$("$root/tools/find_python.sh" "python$version")" || continue
  mkdir "$work/picked"
  "$python" -m pip --python "$target" download -q --disable-pip-version-check --no-deps --no-index \
    --find-links "$dist" -d "$work/picked" triton-lb
  wheel="$(echo "$work"/picked/*.whl)" kind=compiled
  case "$wheel" in *-none-any.whl) kind='pure Python' ;; esac
  echo "== CPython $version gets $(basename "$wheel")"
  "$target" -m venv --without-pip "$work/first"
  into first "$wheel"
  "$work/first/bin/triton-lb" demo --once >"$work/demo.log" || { cat "$work/demo.log" && exit 1; }
  into first 'tritonclient[all]'
  try first "$kind"
  "$target" -m venv --without-pip "$work/second"
  into second 'tritonclient[all]'
  into second "$wheel"
  try second "$kind"
  rm -rf "$work/picked" "$work/first" "$work/second"
  oldest="${oldest:-$target}"
done

echo "== a pure wheel beside an older tritonclient, for which old Pythons alone have wheels"
"$oldest" -m venv --without-pip "$work/pure"
into pure "$(echo "$dist"/*-none-any.whl)"
into pure 'tritonclient[grpc,http]==2.50.0'
try pure 'pure Python'
echo "release_check: passed"
