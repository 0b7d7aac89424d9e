#!/bin/sh
# The steps of the Dockerfile that install something; `make image-test` runs the same.
#
#   image_install.sh dependencies FOLDER   what the product needs, at the versions of constraints.txt
#   image_install.sh compiler FOLDER       an environment that compiles it
#   image_install.sh wheel COMPILER WHEELS the product, from the working directory; compiled where TRITON_LB_COMPILE=1
#   image_install.sh product FOLDER WHEELS that wheel; nothing is left that builds
set -eu
export PYTHONDONTWRITEBYTECODE=1

install="-m pip --disable-pip-version-check install --no-compile -q -c constraints.txt"

# A list of requirements of pyproject.toml: print_list project dependencies
print_list() {
  python3 -c 'import sys, tomllib
part, name = sys.argv[1:]
print(*tomllib.load(open("pyproject.toml", "rb"))[part][name], sep="\n")' "$@"
}

case "$1" in
  dependencies)
    python3 -m venv "$2"
    print_list project dependencies >requirements.txt
    "$2/bin/python" $install -r requirements.txt
    ;;
  compiler)
    python3 -m venv "$2"
    print_list project dependencies >requirements.txt
    print_list dependency-groups compile >>requirements.txt
    "$2/bin/python" $install -r requirements.txt
    ;;
  wheel)
    "$2/bin/python" -m pip --disable-pip-version-check wheel -q --no-build-isolation --no-deps -w "$3" .
    ;;
  product)
    "$2/bin/python" $install --no-deps "$3"/*.whl
    "$2/bin/python" -m pip uninstall -q -y pip setuptools
    # The root file system may be read-only later. Files are the same whenever this is done: sets are written in
    # the order of their hashes.
    PYTHONHASHSEED=0 "$2/bin/python" -m compileall -q -f --invalidation-mode unchecked-hash "$2/lib"
    ;;
  *)
    echo "image_install: no step $1" >&2
    exit 2
    ;;
esac
