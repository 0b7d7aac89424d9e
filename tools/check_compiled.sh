#!/usr/bin/env bash
# A short look at the compiled product: it compiles, does what its sources do, and serves.
#
#   tools/check_compiled.sh PYTHON DIRECTORY
#
# Without the C compiler's optimiser, which takes most of the time and changes nothing here. Of the
# integration tests, those that take the relay through sockets, and three of the process: about 60
# seconds of CPU. Tests that judge by the clock (corpora, queues, hedges) are left out, since this
# runs at idle priority beside other tests; `make test-compiled` runs all.
set -euo pipefail

python="$(realpath -s "$1")" out="$(realpath -m "$2")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v gcc >/dev/null && ! tools/setup_debian.sh gcc libc6-dev; then
  echo "check_compiled: SKIPPED, there is no C compiler: the compiled modules are not tested"
  exit 0
fi
TRITON_LB_COMPILE_O=0 tools/compile.sh "$python" "$out"
cd "$out/tree"
"$python" -c 'import sys; from lb.wire.compiled import is_compiled; sys.exit(not is_compiled())'
# The process does with compiled modules what it does without: serve, finish, and cut.
process=(serves_both_protocols_and_the_own_ports requests_under_way_finish_before_the_end second_signal_cuts)
test() { "$python" -m pytest -q -p no:cacheprovider "$@"; }
# Two at a time: they end last, when nothing else runs.
test tests/unit/wire tests/unit/balancing tests/property/test_http2_shortcuts.py tests/property/test_http2_relay.py \
  tests/property/test_http1_relay.py tests/property/test_stream_relay.py tests/property/test_schedule_shortcuts.py \
  >"$out/units.log" 2>&1 &
units=$!
failed=0
test tests/unit/proxy \
  tests/integration/test_{grpc_relay,http1_relay,http1_life,http1_mixed,http1_bad_requests,http1_bad_backends}.py \
  tests/integration/test_{http2_lifecycle,http2_flow,http2_backends,queue_uploads,stream_sequences,split_attempts}.py \
  "${process[@]/#/tests/integration/test_process.py::test_}" || failed=1
wait $units || failed=1
cat "$out/units.log"
exit $failed
