#!/usr/bin/env bash
# Build the environment that runs real Triton Inference Servers on a CPU, for tests/triton.
#
#   tools/setup_triton.sh [PYTHON]        PYTHON defaults to python3.11
#
# Makes .venvs/triton with tritonserver and its python backend (both inside the wheel of
# nvidia-pytriton) and perf_analyzer (inside the binary wheel of tritonclient up to 2.50).
# It is a second virtual environment because these wheels want an older protobuf than we do.
# Does nothing when everything is in place already. Needs root (or sudo) only where the
# distribution's Python comes without its shared library or venv module.
set -euo pipefail

readonly PYTRITON='nvidia-pytriton==0.7.0'
readonly CLIENT='tritonclient[grpc,http]==2.50.0'
readonly NUMPY='numpy==1.26.4'
readonly LAYOUT=1 # raise it when this script lays files out differently

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venvs/triton"
python="${1:-python3.11}"
stamp="$venv/.complete"

fail() {
  echo "setup_triton: $*" >&2
  exit 1
}

# Ask the interpreter of the environment for one of its build settings.
config_var() {
  "$python" -c 'import sys, sysconfig; print(sysconfig.get_config_var(sys.argv[1]) or "")' "$1"
}

# The directory with the shared libpython that the python backend's stub loads.
libpython_dir() {
  local name="libpython$version.so.1.0" dir
  for dir in "$(config_var LIBDIR)" "$(config_var LIBDIR)/$(config_var MULTIARCH)"; do
    if [ -e "$dir/$name" ]; then
      echo "$dir"
      return
    fi
  done
}

[ "$(uname -sm)" = 'Linux x86_64' ] || fail "Triton's wheel is for Linux on x86_64, this is $(uname -sm)"
command -v "$python" >/dev/null || fail "no $python: install Python 3.11 or name an interpreter"
version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" ||
  fail "$python does not run"

wanted="layout $LAYOUT at $venv, $PYTRITON $CLIENT $NUMPY, python $version in $("$python" -c 'import sys; print(sys.base_prefix)')"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
  exit 0
fi

echo "setup_triton: building $venv"
"$python" -c 'import ensurepip' 2>/dev/null || "$root/tools/setup_debian.sh" "python$version-venv"
if [ -z "$(libpython_dir)" ]; then
  # Debian's own interpreter has it in a package; others were built with it or without.
  case "$(config_var LIBDIR)" in /usr/lib*) "$root/tools/setup_debian.sh" "libpython$version" ;; esac
  [ -n "$(libpython_dir)" ] ||
    fail "$python has no shared libpython$version (built without --enable-shared); use another interpreter"
fi

rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-compile "$PYTRITON" "$CLIENT" "$NUMPY" ||
  fail "pip could not install $PYTRITON $CLIENT $NUMPY"

site="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')"
triton="$site/pytriton/tritonserver"
stub="$triton/python_backend_stubs/$version/triton_python_backend_stub"
[ -f "$stub" ] || fail "Triton's python backend has no stub for Python $version"
install -m 755 "$stub" "$triton/backends/python/"
[ -x "$venv/bin/perf_analyzer" ] || fail "the wheel of $CLIENT holds no perf_analyzer"

# One place with everything that tests start or load, whatever the wheels are called inside.
# perf_analyzer asks for two libraries that auditwheel bundled under hashed names for Triton.
mkdir "$venv/native"
ln -s "$triton/bin/tritonserver" "$triton/backends" "$venv/native/"
ln -s "$(libpython_dir)/libpython$version.so.1.0" "$venv/native/"
for library in libb64.so.0d libcudart.so.12; do
  bundled=("$site"/nvidia_pytriton.libs/"${library%%.so*}"-*.so"${library##*.so}"*)
  [ -e "${bundled[0]}" ] || fail "the wheel of $PYTRITON bundles no $library"
  ln -s "${bundled[0]}" "$venv/native/$library"
done

for binary in "$triton"/bin/tritonserver "$triton"/backends/python/*_stub "$venv/bin/perf_analyzer"; do
  missing="$(LD_LIBRARY_PATH="$venv/native" ldd "$binary" | grep 'not found' || true)"
  [ -z "$missing" ] || fail "$(basename "$binary") lacks libraries: $missing"
done
echo "$wanted" >"$stamp"
echo "setup_triton: done"
