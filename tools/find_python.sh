#!/usr/bin/env bash
# Print the path of an interpreter: of that name in PATH, or among the versions that pyenv installed.
#
#   tools/find_python.sh python3.12
#
# Exits 1 where there is none that runs. A shim of pyenv is there for versions that are not selected, too.
set -euo pipefail

name="$1" root="${PYENV_ROOT:-$HOME/.pyenv}"
for candidate in $(type -ap "$name" || true) "$root"/versions/"${name#python}"*/bin/"$name"; do
  if "$candidate" -c '' 2>/dev/null; then
    "$candidate" -c 'import sys; print(sys.executable)'
    exit
  fi
done
exit 1
