#!/bin/sh
# The steps of the Dockerfile that install something; `make image-test` runs the same.
#
#   image_install.sh dependencies FOLDER EXTRAS   what the product needs, at the versions of constraints.txt
#   image_install.sh product FOLDER EXTRAS        the product itself, from the working directory; nothing is left that builds
set -eu
export PYTHONDONTWRITEBYTECODE=1

step="$1" venv="$2" extras="$3"
python="$venv/bin/python"
pip="$python -m pip --disable-pip-version-check install --no-compile -q -c constraints.txt"

case "$step" in
  dependencies)
    python3 -m venv "$venv"
    "$python" - "$extras" >"$venv/requirements.txt" <<'END'
import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
print(*project["dependencies"], sep="\n")
for extra in filter(None, sys.argv[1].split(",")):
    print(*project["optional-dependencies"][extra], sep="\n")
END
    $pip -r "$venv/requirements.txt"
    ;;
  product)
    $pip --no-deps .
    "$python" -m pip uninstall -q -y pip setuptools
    rm "$venv/requirements.txt"
    # The root file system may be read-only later. Files are the same whenever this is done: sets are written in
    # the order of their hashes.
    PYTHONHASHSEED=0 "$python" -m compileall -q -f --invalidation-mode unchecked-hash "$venv/lib"
    ;;
  *)
    echo "image_install: no step $step" >&2
    exit 2
    ;;
esac
