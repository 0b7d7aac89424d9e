#!/usr/bin/env bash
# Make the wheel with compiled hot modules, and a tree to test and measure it from.
#
#   tools/compile.sh PYTHON DIRECTORY
#
# Needs the test environment, gcc and the headers of that Python; installs the latter two if missing.
# The wheel and `tree` are made new in DIRECTORY; nothing in the source tree changes.
set -euo pipefail

python="$(realpath -s "$1")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out="$(realpath -m "$2")"

headers="$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
missing=()
command -v gcc >/dev/null || missing+=(gcc libc6-dev)
[ -e "$headers/Python.h" ] ||
  missing+=("$("$python" -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])')")
[ ${#missing[@]} -eq 0 ] || tools/setup_debian.sh "${missing[@]}"

rm -rf "$out"
mkdir -p "$out/source/tools" "$out/tree"
# From a copy: what setuptools leaves in its build folder would come into the next wheel.
cp -R lb deploy setup.py pyproject.toml README.md LICENSE "$out/source"
cp tools/build_backend.py "$out/source/tools"
(cd "$out/source" && TRITON_LB_COMPILE=1 CC=gcc "$python" -m pip wheel -q --disable-pip-version-check \
  --no-build-isolation --no-deps -w "$out" .)
rm -r "$out/source"
"$python" -m zipfile -e "$out"/*.whl "$out/tree"
for name in tests benchmarks tools config docs deploy pyproject.toml Makefile ARCHITECTURE.md; do
  ln -s "$PWD/$name" "$out/tree/$name"
done
