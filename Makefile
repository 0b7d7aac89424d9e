# Everything that a fresh Debian or Ubuntu machine with Python 3.11 needs is installed here.
# Each other interpreter has an environment of its own: make test PYTHON=python3.13
PYTHON ?= python3.11
VENV := $(if $(filter python3.11,$(PYTHON)),.venv,.venvs/$(notdir $(PYTHON)))
# The real Tritons have an environment of their own, the same for every PYTHON.
TRITON_PYTHON ?= $(if $(shell command -v python3.11),python3.11,$(PYTHON))
BIN := $(VENV)/bin

# Tests that need the processor and no clock. The others mostly wait: for the relay and whole processes
# before backends that are played (WHOLE_TESTS), for real Tritons (SERVER_TESTS), or for other programs and clients.
BUSY_TESTS := tests/architecture tests/fuzz tests/property tests/unit tests/wire tests/work \
  $(filter-out %/test_smoke.py,$(wildcard tests/study/test_*.py))
WHOLE_TESTS := tests/integration
WHOLE_FIRST := $(wildcard tests/integration/test_[a-l]*.py)
WHOLE_LAST := $(filter-out $(WHOLE_FIRST),$(wildcard tests/integration/test_*.py))
SERVER_TESTS := tests/triton
# What runs so takes the time that nobody else wants, until the tests that wait are over.
IDLE := $(shell chrt --idle 0 true 2>/dev/null && echo chrt --idle 0 || echo nice -n 19)

# Tests start many hundred processes of the product: one of them compiles its modules for all.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: ablate demo test test-busy test-busy-units test-busy-others test-waiting test-whole test-servers test-compiled check check-compiled compile coverage covered-first covered-last covered-units diff-against lint types audit fmt bench bench-against bench-micro bench-quick chaos differential floods fuzz fuzz-smoke peers placement proto docs docs-site image-test mutants pictures rollback soak standby study workers triton debian dist release-check stack-test clean test-whole-first test-whole-last test-others standby-live split-chaos sequences

demo: $(VENV)/.run
	$(BIN)/triton-lb demo $(if $(BACKENDS),--backends $(BACKENDS)) $(if $(ONCE),--once)

test: $(VENV)/.test triton debian
	$(BIN)/python -m pytest -q

test-busy: test-busy-units test-busy-others

test-busy-units: $(VENV)/.test
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/unit

test-busy-others: $(VENV)/.test
	$(BIN)/python -m pytest -q -p no:cacheprovider $(filter-out tests/unit,$(BUSY_TESTS))

test-waiting: test-whole test-servers test-others

test-whole: test-whole-first test-whole-last

test-whole-first: $(VENV)/.test debian
	$(BIN)/python -m pytest -q -p no:cacheprovider $(WHOLE_FIRST)

test-whole-last: $(VENV)/.test debian
	$(BIN)/python -m pytest -q -p no:cacheprovider $(WHOLE_LAST)

test-servers: $(VENV)/.test triton debian
	$(BIN)/python -m pytest -q -p no:cacheprovider $(SERVER_TESTS)

test-others: $(VENV)/.test triton debian
	$(BIN)/python -m pytest -q -p no:cacheprovider $(addprefix --ignore=,$(BUSY_TESTS) $(WHOLE_TESTS) $(SERVER_TESTS))

# All tests. Those that wait run in three processes side by side, which take about as long: their ports
# are locked (tests/fakes/process.py).
# What needs no quiet machine runs beside them in what time they leave; there a test may take long without being at fault.
# What one of them alone needs is set up by it, while others run.
# Output of the first of them comes at once, all other output at the end.
check:
	@mkdir -p build
	@$(MAKE) -j2 --output-sync=target --no-print-directory lint $(VENV)/.test debian
	@TEST_LIMIT_S=300 $(IDLE) $(MAKE) -kj3 --output-sync=target --no-print-directory types audit docs-site check-compiled test-busy >build/check.log 2>&1 & \
	beside=$$!; $(MAKE) --no-print-directory test-servers >build/check-servers.log 2>&1 & servers=$$!; \
	$(MAKE) --no-print-directory test-whole-last >build/check-whole.log 2>&1 & last=$$!; \
	$(MAKE) -k --no-print-directory test-whole-first test-others; first=$$?; \
	wait $$last; last=$$?; cat build/check-whole.log; wait $$servers; servers=$$?; cat build/check-servers.log; \
	$(BIN)/python tools/usual_priority.py $$beside; wait $$beside; beside=$$?; cat build/check.log; exit $$((first || last || servers || beside))

lint: $(VENV)/.test
	$(BIN)/ruff check lb tests benchmarks tools deploy
	$(BIN)/ruff format --check -q lb tests benchmarks tools deploy

types: $(VENV)/.test
	$(BIN)/mypy

# The same product with its hot modules compiled (docs/decisions/0021-compiling.md), as a wheel in
# build/compiled and laid out in build/compiled/tree; nothing in the source tree changes.
compile: build/compiled/.ready

build/compiled/.ready: $(VENV)/.test setup.py pyproject.toml tools/compile.sh $(shell find lb -name '*.py')
	tools/compile.sh $(BIN)/python build/compiled
	touch $@

# The tests of what is compiled, and of the whole process, against it.
test-compiled: build/compiled/.ready debian
	cd build/compiled/tree && ../../../$(BIN)/python -m pytest -q -p no:cacheprovider \
	  tests/unit/wire tests/unit/proxy tests/unit/balancing tests/unit/domain tests/property tests/integration

# Part of them, in a few minutes.
check-compiled: $(VENV)/.test
	tools/check_compiled.sh $(BIN)/python build/check-compiled

# Branch coverage per package, processes that tests start included, against tests/coverage_floors.json (docs/decisions/0049-mutants-and-coverage.md);
# FLOORS=--update records what was measured.
# Three processes run the tests side by side. A test that fails is told of after the figures.
UNCOVERED := tests/integration/test_corpus_%.py tests/integration/test_h2spec.py
COVERED := TEST_LIMIT_S=300 RUN_LIMIT_S=7200 $(BIN)/coverage run -m pytest -q -p no:cacheprovider
coverage: $(VENV)/.test debian
	rm -rf build/coverage && mkdir -p build/coverage
	$(MAKE) -kj3 --output-sync=target --no-print-directory covered-units covered-first covered-last; tests=$$?; \
	$(BIN)/coverage combine -q && $(BIN)/coverage json -q -o build/coverage/report.json \
	  && $(BIN)/python tools/coverage_floors.py build/coverage/report.json $(FLOORS) && exit $$tests

covered-units: $(VENV)/.test
	$(COVERED) tests/unit tests/property

covered-first: $(VENV)/.test
	$(COVERED) $(filter-out $(UNCOVERED),$(WHOLE_FIRST))

covered-last: $(VENV)/.test
	$(COVERED) $(filter-out $(UNCOVERED),$(WHOLE_LAST))

# Small defects in lb/proxy, one at a time: which ones do the tests notice? It goes on where it was ended;
# MUTANTS="--seconds 7200 --update" plays for two hours and records what it found.
mutants: $(VENV)/.test
	$(BIN)/python -m tests.mutants $(MUTANTS)

# Known vulnerabilities of the pinned packages, and build/sbom.json, the bill of materials.
audit: $(VENV)/.test .venvs/audit/.ready
	$(BIN)/python tools/audit.py .venvs/audit build

fmt: $(VENV)/.test
	$(BIN)/ruff check --fix -q lb tests benchmarks tools deploy
	$(BIN)/ruff format -q lb tests benchmarks tools deploy

# Side by side with Envoy, HAProxy and nginx, triton-lb pure and compiled, under 30 minutes; BENCH=--keep writes to benchmarks/ itself.
# What cannot be compiled is left out.
bench: $(VENV)/.test triton
	-$(MAKE) --no-print-directory compile
	tools/setup_bench.sh $(BIN)/python
	$(BIN)/python -m benchmarks.load $(BENCH)

# The core cells against Envoy alone, under 4 minutes.
bench-quick: $(VENV)/.test
	tools/setup_bench.sh $(BIN)/python
	$(BIN)/python -m benchmarks.load --quick $(BENCH)

# The core cells, interleaved with another commit, both as they are and compiled: make bench-against REV=HEAD~1
# Under 7 minutes, and 3 for each commit that was not compiled yet. What cannot be compiled is left out.
bench-against: $(VENV)/.test
	-$(MAKE) --no-print-directory compile
	tools/setup_bench.sh $(BIN)/python
	$(BIN)/python -m benchmarks.load --quick --against $(REV) $(BENCH)

# What each function of the fence costs: nanoseconds, instructions, objects; MICRO="dispatch pick" shows those only.
bench-micro: $(VENV)/.test
	$(BIN)/python -m benchmarks.micro $(MICRO)

# Every target under atheris: make fuzz FUZZ_SECONDS=600 TARGET=http1_request. The corpora and what is
# found stay in build/fuzz. `make test` runs the same targets briefly, without atheris.
FUZZ_SECONDS ?= 60
fuzz: $(VENV)/.fuzz
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(TARGET)

fuzz-smoke: $(VENV)/.test
	$(BIN)/python -m pytest -q tests/fuzz

# Varied requests to a real Triton, and to the balancer before another one that is alike; what differs
# is printed with how to replay it. `make test` plays some hundreds.
DIFFERENTIAL_SECONDS ?= 300
SEED ?= 1
differential: $(VENV)/.test triton
	$(BIN)/python -m tests.differential --seconds $(DIFFERENTIAL_SECONDS) --seed $(SEED)

# All honest peers, Node and Java among them; those that need neither also run, shorter, in `make test`.
peers: $(VENV)/.test triton debian
	tools/setup_peers.sh
	PEERS_SECONDS=60 $(BIN)/python -m pytest -q tests/peers/test_*.py tests/peers/peer_*.py tests/triton/test_perf_analyzer*.py

# Every flood at full size with a good client beside it, about 20 minutes; FLOODS="zero TLS" plays those named so.
floods: $(VENV)/.test
	$(BIN)/python -m tests.floods $(FLOODS)

# Every fault before three real Tritons, side by side with Envoy, about half an hour (CHAOS=--quick: 20);
# CHAOS="kill-one freeze" plays those, CHAOS=--keep writes benchmarks/RESULTS-faults.md.
chaos: $(VENV)/.test triton
	tools/setup_bench.sh $(BIN)/python
	$(BIN)/python -m benchmarks.faults $(CHAOS)

# An hour of all faults by chance, triton-lb alone.
SOAK_MINUTES ?= 60
soak: $(VENV)/.test triton
	tools/setup_bench.sh $(BIN)/python
	$(BIN)/python -m benchmarks.faults --soak $(SOAK_MINUTES) --proxies triton-lb

# Cut batches on three real Tritons that die, freeze, and lose and change the model, under 5 minutes.
split-chaos: $(VENV)/.test triton
	SPLIT_BATCHES=$(or $(BATCHES),10000) TEST_LIMIT_S=1200 $(BIN)/python -m pytest -q -s -o faulthandler_timeout=1300 tests/triton/test_split_chaos.py

# Twenty models on three real Tritons with room for four each, beside other rules on the same requests; SECONDS=60
# is shorter.
placement: $(VENV)/.test triton
	PLACEMENT_SECONDS=$(or $(SECONDS),600) TEST_LIMIT_S=3600 $(BIN)/python -m pytest -q -s -o faulthandler_timeout=4000 tests/triton/test_placement.py tests/triton/test_placement_chaos.py

# A thousand days of seven slices, of which five stand by: about 20 minutes.
standby: $(VENV)/.test
	$(BIN)/python -m benchmarks.standby

# A thousand hours of variants that are alike, of which none is to be rolled back, and how soon bad ones are: about 20 minutes.
rollback: $(VENV)/.test
	$(BIN)/python -m benchmarks.study.simulate_rollback

# Step and sine load on real Tritons that commands start, and on as many that always serve: four runs, half an
# hour in all; SECONDS=900 for longer ones.
standby-live: $(VENV)/.test triton
	$(BIN)/python -m benchmarks.standby_live --seconds $(or $(SECONDS),450)

# Placing and queueing before Tritons that are not alike, side by side: the core in about 20 minutes,
# STUDY=--all in about two hours; STUDY="unequal --runs 5 --contestants triton-lb,haproxy-tuned" plays
# that, STUDY=--list shows what there is. It goes on where it was ended; STUDY=--keep keeps the page.
# At the end it draws the day of slices that stand by (docs/pictures/standby.svg).
study: $(VENV)/.test triton
	tools/setup_bench.sh $(BIN)/python
	$(BIN)/python -m benchmarks.study $(STUDY)
	$(BIN)/python -m benchmarks.standby_plot

# 1,000 sequences before four workers, each step over another connection and protocol.
sequences: $(VENV)/.test
	SEQUENCES=1000 TEST_LIMIT_S=600 $(BIN)/python -m pytest -q -p no:cacheprovider tests/integration/test_worker_sequences.py

# Several workers before the same backends, in simulated time, beside one worker and beside workers that know nothing of each other.
# Some hours with 200 seeds; make workers WORKERS="--seeds 16 --workers 2 4" takes minutes.
workers: $(VENV)/.test
	$(BIN)/python -m benchmarks.workers $(WORKERS)

# What each constant and each mechanism of the scheduler is worth, in simulated time: half, double and off in every scene. Under an
# hour on two cores that have nothing else to do; it goes on where it was ended; ABLATE="--only lead" plays some variants.
ablate: $(VENV)/.test
	$(BIN)/python -m benchmarks.ablate $(ABLATE)

# A commit and the working tree before the same scripted backends: generated requests of both protocols
# are played before either, and what clients and backends got, the access log and counters are compared.
# make diff-against REV=HEAD~1 PLANS=10000 IGNORE="--ignore cdn-loop"
PLANS ?= 10000
diff-against: $(VENV)/.test
	$(BIN)/python -m tests.against $(REV) --plans $(PLANS) $(IGNORE)

# Pictures of the page in headless Chromium, and a recording of the demo in a terminal, from real processes: docs/pictures.
# A quiet machine is needed, since latencies are shown.
pictures: $(VENV)/.test debian
	$(BIN)/python tools/pictures.py
	$(BIN)/python tools/record_demo.py

docs: $(VENV)/.test
	$(BIN)/python -m lb.settings.document > docs/configuration.md
	$(BIN)/python -m lb.telemetry.catalogue > docs/metrics.md
	$(BIN)/python -m benchmarks.headlines
	$(BIN)/triton-lb generate compose --gpus 2 --force --output deploy/compose/gpus >/dev/null
	$(BIN)/triton-lb generate systemd --gpus 2 --force --output deploy/systemd >/dev/null

# A site of the same pages, in build/docs/site; dead links and anchors are errors.
docs-site: .venvs/docs/.ready
	tools/docs_site.sh .venvs/docs/bin/python

# The container image: built with buildah on a base of debootstrap, and started in a clean root; about 3
# minutes, as root. Says what could not be done.
image-test: $(VENV)/.test
	-tools/setup_debian.sh buildah debootstrap iproute2
	$(BIN)/python tools/image_test.py

# A generated stack on Debian's container engine: started, used, broken and taken down; as root, minutes
# once the image is built. Says what differs from a user's engine.
stack-test: $(VENV)/.stack
	-tools/setup_debian.sh docker.io debootstrap iproute2 util-linux
	$(BIN)/python tools/stack_test.py

# What is published: sdist, pure wheel, compiled wheels of the CPythons that are here (CONTRIBUTING.md "Release").
# make dist REPOSITORY=https://HOST/OWNER/NAME gives the page on a package index its links and images.
dist: .venvs/release/.ready
	tools/make_dist.sh .venvs/release/bin/python dist

# And tried in empty environments, as users install it.
release-check: dist
	tools/release_check.sh .venvs/release/bin/python dist

# Only after lb/kserve/inference.proto changed; what it makes is checked in.
proto: $(VENV)/.test
	$(BIN)/python -m pip install -q -c constraints.txt grpcio-tools
	$(BIN)/python tools/make_messages.py

# Real Tritons on a CPU, in an environment of their own; who asks while it is made waits.
triton:
	flock tools/setup_triton.sh tools/setup_triton.sh $(TRITON_PYTHON)

# Debian packages that tests call: promtool, curl, openssl, h2load, nghttp, chromium, systemd-analyze.
debian:
	tools/setup_debian.sh

# What runs the product, and what tests it; versions are those of constraints.txt.
$(VENV)/.run: pyproject.toml constraints.txt
	tools/setup_venv.sh $(PYTHON) $(VENV)
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt
	tools/setup_venv.sh $(PYTHON) $(VENV) test
	touch $(VENV)/.run $@

# What looks at the project from outside, each in an environment without it.
.venvs/audit/.ready .venvs/docs/.ready .venvs/release/.ready: .venvs/%/.ready: pyproject.toml constraints.txt
	tools/setup_venv.sh $(PYTHON) .venvs/$* --only $*
	touch $@

$(VENV)/.stack: pyproject.toml constraints.txt
	tools/setup_venv.sh $(PYTHON) $(VENV) test stack
	touch $(VENV)/.run $(VENV)/.test $@

$(VENV)/.fuzz: pyproject.toml constraints.txt
	tools/setup_venv.sh $(PYTHON) $(VENV) test fuzz
	touch $(VENV)/.run $(VENV)/.test $@

clean:
	rm -rf .venv .venvs build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
