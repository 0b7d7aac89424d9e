#!/usr/bin/env bash
# Make a virtual environment and install this project into it, at the versions of constraints.txt.
#
#   tools/setup_venv.sh PYTHON VENV [GROUP...]        GROUP: a dependency group of pyproject.toml
#   tools/setup_venv.sh PYTHON VENV --only GROUP...   programs that look at the project from outside, without it
set -euo pipefail

python="$1" venv="$2"
shift 2
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="$(tools/find_python.sh "$python" || echo python3)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
  echo "setup_venv: Python 3.11 or later is needed (make PYTHON=...)" >&2
  exit 1
}
# Debian and Ubuntu ship ensurepip in a package of its own.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  tools/setup_debian.sh "python$version-venv"
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
install=("$venv/bin/python" -m pip install -qq --disable-pip-version-check -c constraints.txt)
# Python 3.11 brings a pip that knows no groups.
"${install[@]}" pip
project=(-e .)
if [ "${1:-}" = --only ]; then
  shift
  # Each runs once: compiling all their modules would take as long as what they do.
  project=(--no-compile)
fi
"${install[@]}" "${project[@]}" "${@/#/--group=}"
