# `make` prints the help. Start with `make run` and `make test`.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

WORKSPACE ?= workspace
JOB ?= manifests/samples/shakespeare.yaml
# The folder of the node of `make cluster-up`. Its path must be short, because the folder contains sockets.
NODE ?= /var/tmp/stagecoach-node
# The browser of `make page`, and the folder for its pictures.
CHROMIUM ?= chromium
PICTURES ?= docs
# The folder of tools that are built once and that all checkouts share.
CACHE ?= $(HOME)/.cache/stagecoach
TORCH_VERSION := 2.11.0
TORCH := $(CACHE)/torch-$(TORCH_VERSION)
NVRTC := $(CACHE)/nvrtc/nvidia/cu13/lib
TRANSFORMERS_VERSION := 5.23.0
JINJA2_VERSION := 3.1.6
PEFT_VERSION := 0.21.2
ACCELERATE_VERSION := 1.15.0
TRL_VERSION := 1.16.0
TRL := $(CACHE)/trl-$(TRL_VERSION)
TRANSFORMERS := $(CACHE)/transformers-$(TRANSFORMERS_VERSION)-jinja2-$(JINJA2_VERSION)-peft-$(PEFT_VERSION)
DATASETS_VERSION := 5.2.0
HUGGINGFACE_HUB_VERSION := 2.4.0
DATASETS := $(CACHE)/datasets-$(DATASETS_VERSION)-$(HUGGINGFACE_HUB_VERSION)
MOTO_VERSION := 5.2.5
MOTO := $(CACHE)/moto-$(MOTO_VERSION)
S3S_VERSION := 0.14.1
S3S := $(CACHE)/s3s-fs-$(S3S_VERSION)/bin/s3s-fs
TENSORBOARD_VERSION := 2.21.0
TENSORBOARD := $(CACHE)/tensorboard-$(TENSORBOARD_VERSION)
DENY_VERSION := 0.20.2
DENY := $(CACHE)/cargo-deny-$(DENY_VERSION)/bin/cargo-deny
STAGECOACH := target/debug/stagecoach
# The names of the integration test binaries. Each binary is a folder with a main.rs. `cargo test` always selects the
# whole workspace, so that all binaries share one build of every dependency, and then a binary by its name.
CLUSTER_TEST_BINARIES := cluster operator
NODE_TEST_BINARIES := node product
NEXT_VERSION := $(CURDIR)/target/next-version
TEST_BINARIES := $(filter-out system slow $(CLUSTER_TEST_BINARIES) $(NODE_TEST_BINARIES), \
	$(notdir $(patsubst %/main.rs,%,$(wildcard operator/tests/*/main.rs trainer/tests/*/main.rs crates/*/tests/*/main.rs \
	tests/tests/*/main.rs tests/*/tests/*/main.rs))))

.PHONY: help run trainer test test-slow test-kubernetes test-all test-exhaustive gpu soak crashes model strace page transformers datasets object-stores tensorboard collector grafana kueue-minors bench manifests e2e e2e-report cluster-up cluster-down lint deny build release reproducible libtorch nvrtc torch texts crates downloads cluster-tools tools clean

# The targets of the help, by group. The help shows a target without a group at its end.
HELP_FIRST := run test lint e2e bench
HELP_TESTS := test-slow test-kubernetes test-all test-exhaustive soak crashes model strace page transformers datasets object-stores tensorboard collector grafana kueue-minors
HELP_CLUSTER := cluster-up cluster-down e2e-report cluster-tools
HELP_BUILD := trainer build manifests release reproducible clean
HELP_FETCH := libtorch nvrtc torch texts
HELP_GPU := gpu

define help_of
for target in $(1); do sed -nE "s/^($$target):.*## (.*)/\1\t\2/p" $(MAKEFILE_LIST); done | awk -F'\t' '{ printf "  make %-16s %s\n", $$1, $$2 }'
endef

help:
	@$(call help_of,$(HELP_FIRST))
	@echo; echo "More tests:"; $(call help_of,$(HELP_TESTS))
	@echo; echo "Clusters:"; $(call help_of,$(HELP_CLUSTER))
	@echo; echo "GPUs:"; $(call help_of,$(HELP_GPU))
	@echo; echo "Builds:"; $(call help_of,$(HELP_BUILD))
	@echo; echo "Downloads, each also made when it is needed:"; $(call help_of,$(HELP_FETCH))
	@$(call help_of,$(filter-out $(HELP_FIRST) $(HELP_TESTS) $(HELP_CLUSTER) $(HELP_GPU) $(HELP_BUILD) $(HELP_FETCH), \
		$(shell sed -nE 's/^([a-z0-9-]+):.*## .*/\1/p' $(MAKEFILE_LIST))))
	@echo
	@echo "  JOB=$(JOB)  WORKSPACE=$(WORKSPACE)  FRESH=1 (run: start over)"

run: downloads trainer ## trains the sample job on this machine, with three stages as processes
	$(STAGECOACH) run $(JOB) --workspace $(WORKSPACE) $(if $(FRESH),--fresh)

test: build texts nvrtc ## runs the tests of every crate and of whole jobs, without root, Go and Kubernetes
	@echo "building the tests (2 of 2 builds)"
	cargo test --workspace --no-run --lib --bins $(addprefix --test ,$(TEST_BINARIES) system)
	@echo "tests of the crates (1 of 2)"
	@# the doctests run first, because they take only seconds
	cargo test --workspace --doc --quiet
	@# many tests wait for timeouts as long as others compute, so there are more test threads than cores
	WORKSPACE=$(WORKSPACE) STAGECOACH_NVRTC=$(NVRTC) cargo test --workspace --lib --bins \
		$(addprefix --test ,$(TEST_BINARIES)) -- --test-threads=$$((2 * $$(nproc)))
	@echo "tests of whole jobs (2 of 2)"
	cargo test --workspace --test system -- --test-threads=$$((2 * $$(nproc)))

test-slow: build texts ## disturbs whole jobs in every way
	cargo test --workspace --test slow -- --test-threads=$$((2 * $$(nproc)))

test-kubernetes: build ## tests operator, kubectl plugin and chart with a Kubernetes API server, which it builds once; needs Go
	@tests/cluster/tools.sh $(CACHE) >/dev/null
	@tests/next_version.sh $(NEXT_VERSION)
	@# Many tests wait, so the test threads outnumber the cores. The tests of queues have a process of their own, because
	@# the clusters that tests share run until the process ends.
	export STAGECOACH_CLUSTER_TOOLS=$$(tests/cluster/tools.sh $(CACHE)) STAGECOACH_NEXT_VERSION=$(NEXT_VERSION); \
		cargo test --workspace $(addprefix --test ,$(CLUSTER_TEST_BINARIES)) -- --test-threads=8 --skip queues::; \
		cargo test --workspace --test operator -- --test-threads=8 queues::

test-all: test test-slow test-kubernetes datasets ## runs test, test-slow, test-kubernetes and datasets, which need no root

test-exhaustive: build texts ## runs the tests of schedules, parity, memory and the state machine in full, and transformers, object-stores, tensorboard, collector and grafana
	STAGECOACH_SCHEDULES=all cargo test --workspace --test pipeline --quiet schedules::
	STAGECOACH_PARITY=all cargo test --workspace --test system parity:: -- --nocapture
	cargo test --workspace --test lifecycle -- --ignored model::
	STAGECOACH_MEMORY=all cargo test --workspace --test slow memory:: -- --nocapture
	@# the tests of NCCL again, with a stand-in in which a message delays all later work of its GPU
	NCCL_STAND_IN_ONE_QUEUE=1 cargo test --workspace --test system --test slow --quiet -- nccl:: soak::so_it_does_over_nccl parity::
	$(MAKE) transformers object-stores tensorboard collector grafana

e2e: build texts ## tests images, chart, jobs and faults on a real node; needs root and Linux
	tests/e2e/run.sh $(CACHE) tests/e2e/all.sh $(TESTS)
	@# on a machine without a node: a node that has ended leaves nothing behind
	STAGECOACH_CLUSTER_TOOLS=$$(tests/cluster/tools.sh $(CACHE) node) STAGECOACH_IMAGES=$(CACHE)/images \
		cargo test --quiet --workspace --test node ends:: -- --ignored

e2e-report: build texts ## measures how long training stops when a pod dies on a real node; figures in bench/results/
	for what in node node-replicas; do tests/e2e/run.sh $(CACHE) target/debug/stagecoach-bench $$what $(WORKSPACE) bench/results; done

cluster-up: build ## starts a one-node Kubernetes with Stagecoach's images on this machine; needs root and Linux
	@tests/node/start.sh $(CACHE) $(NODE)
	@echo "# then, with docs/FIRST-JOB.md for what comes next:"
	@echo "helm install stagecoach charts/stagecoach --namespace stagecoach-system --create-namespace --set image.tag=e2e \\"
	@echo "    --set trainerImage.tag=e2e --set image.repository=localhost/stagecoach-operator --set trainerImage.repository=localhost/stagecoach-trainer"

cluster-down: ## ends the node of cluster-up, and undoes its changes to the machine
	target/debug/stagecoach-node down $(NODE)

soak: build ## kills one job N times, in every phase, while its number of stages changes (make soak N=1000)
	STAGECOACH_KILLS=$(or $(N),50) cargo test --workspace --test slow --quiet soak:: -- --nocapture

bench: build torch texts ## measures training beside PyTorch, the cost of checkpoints and streams, and an operator with 500 jobs; figures in bench/results/
	PYTHONPATH=$(TORCH) target/debug/stagecoach-bench training $(WORKSPACE) bench/results
	PYTHONPATH=$(TORCH) target/debug/stagecoach-bench replicas $(WORKSPACE) bench/results
	PYTHONPATH=$(TORCH) target/debug/stagecoach-bench sleep $(WORKSPACE) bench/results
	target/debug/stagecoach-bench checkpoint $(WORKSPACE) bench/results
	target/debug/stagecoach-bench memory $(WORKSPACE) bench/results
	target/debug/stagecoach-bench audit $(WORKSPACE) bench/results
	target/debug/stagecoach-bench recovery $(WORKSPACE) bench/results
	target/debug/stagecoach-bench agreement $(WORKSPACE) bench/results
	target/debug/stagecoach-bench scaling $(WORKSPACE) bench/results
	target/debug/stagecoach-bench streaming $(WORKSPACE) bench/results
	tests/cluster/tools.sh $(CACHE) kwok jobset >/dev/null
	cargo build --release --quiet --package stagecoach-operator
	for what in operator creation silence scale spot; do \
		STAGECOACH_CLUSTER_TOOLS=$$(tests/cluster/tools.sh $(CACHE)) target/debug/stagecoach-bench $$what $(WORKSPACE) bench/results; \
	done

gpu: build torch ## tests and measures on a GPU, or rehearses that on the CPU; figures in bench/results/gpu.json or gpu-rehearsal.json
	scripts/gpu.sh pack $(CACHE)/gpu
	PYTHONPATH=$(TORCH) scripts/gpu.sh run $(CACHE)/gpu

crashes: build ## kills a stage, or fills its disk, at every operation on the shared folder
	STAGECOACH_CRASHES=all cargo test --workspace --test slow --quiet -- crashes:: storage:: --nocapture

model: ## explores the state machine in larger worlds than `make test-all`
	STAGECOACH_MODEL=all cargo test --workspace --test lifecycle --quiet model:: -- --include-ignored --nocapture

strace: build ## kills stages and launcher at system calls that STAGECOACH_SEED selects; needs the right to trace processes
	@command -v strace >/dev/null || { echo "strace is missing: install it (Debian: apt-get install strace)" >&2; exit 1; }
	cargo test --workspace --test slow --quiet strace:: -- --ignored --nocapture

page: build ## opens the live page, the planner and the output of commands in Chromium; writes their pictures to docs/
	@command -v $(CHROMIUM) >/dev/null || { echo "$(CHROMIUM) is missing: install it (Debian: apt-get install chromium)" >&2; exit 1; }
	STAGECOACH_CHROMIUM=$(CHROMIUM) STAGECOACH_PICTURES=$(abspath $(PICTURES)) \
		cargo test --workspace --test slow --quiet page:: -- --ignored --nocapture

transformers: build torch $(TRANSFORMERS) $(TRL) ## exchanges models with Hugging Face's transformers and PEFT, and compares tokens and masks of texts and chats
	STAGECOACH_TRANSFORMERS=$(TRANSFORMERS)/bin/python PYTHONPATH=$(TORCH) \
		cargo test --workspace --test slow --quiet transformers:: -- --ignored --nocapture
	STAGECOACH_TRANSFORMERS=$(TRANSFORMERS)/bin/python \
		cargo test --workspace --test data --quiet families:: -- --ignored --nocapture
	STAGECOACH_TRANSFORMERS=$(TRANSFORMERS)/bin/python STAGECOACH_CHAT_TEMPLATES=$(TRL)/trl/chat_templates \
		cargo test --workspace --test chat --quiet transformers:: -- --ignored --nocapture

datasets: build $(DATASETS) ## compares what Stagecoach and Hugging Face's huggingface_hub and datasets read from a hub on this machine
	STAGECOACH_DATASETS=$(DATASETS)/bin/python \
		cargo test --workspace --test hub --quiet python:: -- --ignored --nocapture

object-stores: build $(MOTO) $(S3S) ## lists and reads files of two other S3 servers, moto and s3s
	STAGECOACH_MOTO=$(MOTO)/bin/python STAGECOACH_S3S=$(S3S) \
		cargo test --workspace --test objects --quiet others:: -- --ignored --nocapture

tensorboard: build $(TENSORBOARD) ## checks that TensorBoard reads the output of `stagecoach tensorboard`
	STAGECOACH_TENSORBOARD=$(TENSORBOARD)/bin/python \
		cargo test --workspace --test slow --quiet tensorboard:: -- --ignored --nocapture

collector: build ## sends metrics and traces of a run to an OpenTelemetry collector, which it builds once; needs Go
	STAGECOACH_CLUSTER_TOOLS=$$(tests/cluster/tools.sh $(CACHE) otelcol) \
		cargo test --workspace --test slow --quiet collector:: -- --ignored --nocapture

kueue-minors: build ## tests three minor versions of Kueue: all webhooks with the same Workloads, and the operator with the two older versions
	@tests/cluster/tools.sh $(CACHE) kueue-0.18 kueue-0.17 >/dev/null
	@tests/cluster/tools.sh $(CACHE) >/dev/null
	STAGECOACH_CLUSTER_TOOLS=$$(tests/cluster/tools.sh $(CACHE)) \
		cargo test --workspace --test cluster --quiet kueue::minors:: -- --ignored --nocapture
	STAGECOACH_TEST_KUEUE=kueue-0.18 STAGECOACH_CLUSTER_TOOLS=$$(tests/cluster/tools.sh $(CACHE)) \
		cargo test --workspace --test operator --quiet queues::
	# docs/KUEUE.md lists what 0.17 lacks
	STAGECOACH_TEST_KUEUE=kueue-0.17 STAGECOACH_CLUSTER_TOOLS=$$(tests/cluster/tools.sh $(CACHE)) \
		cargo test --workspace --test operator --quiet queues:: -- --skip elastic:: --skip multikueue:: --skip crashes::

grafana: ## checks the chart's dashboard against Grafana's schema; needs Node.js
	@tests/grafana/check.sh $(CACHE)

$(TENSORBOARD):
	@echo "installing TensorBoard $(TENSORBOARD_VERSION) into a virtual environment (once, into $@)"
	@python3 -m venv $@.new
	@$@.new/bin/python -m pip install --quiet tensorboard==$(TENSORBOARD_VERSION)
	@mv $@.new $@

$(S3S):
	@echo "building s3s-fs $(S3S_VERSION) (once, into $(CACHE))"
	@CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --debug --locked --version $(S3S_VERSION) --features binary \
		--root $(dir $(@D)) s3s-fs

$(MOTO):
	@echo "installing moto $(MOTO_VERSION) into a virtual environment (once, into $@)"
	@python3 -m venv $@.new
	@$@.new/bin/python -m pip install --quiet 'moto[server]==$(MOTO_VERSION)'
	@mv $@.new $@

$(TRANSFORMERS):
	@echo "installing transformers $(TRANSFORMERS_VERSION) into a virtual environment (once, into $@)"
	@python3 -m venv $@.new
	@$@.new/bin/python -m pip install --quiet transformers==$(TRANSFORMERS_VERSION) jinja2==$(JINJA2_VERSION) psutil
	@# without the dependency torch: PYTHONPATH names the folder with torch
	@$@.new/bin/python -m pip install --quiet --no-deps peft==$(PEFT_VERSION) accelerate==$(ACCELERATE_VERSION)
	@mv $@.new $@

$(TRL):
	@echo "installing the chat templates of TRL $(TRL_VERSION) (once, into $@)"
	@# without its dependencies, because the tests read only its templates
	@python3 -m pip install --quiet --no-deps --target $@.new trl==$(TRL_VERSION)
	@mv $@.new $@

$(DATASETS):
	@echo "installing datasets $(DATASETS_VERSION) into a virtual environment (once, into $@)"
	@python3 -m venv $@.new
	@$@.new/bin/python -m pip install --quiet datasets==$(DATASETS_VERSION) huggingface_hub==$(HUGGINGFACE_HUB_VERSION)
	@mv $@.new $@

manifests: tools ## writes the CRD from the types in crates/api, for kubectl and for the chart
	cargo run --quiet --package stagecoach-api --bin crdgen > manifests/crd/pipelinejobs.yaml.new
	mv manifests/crd/pipelinejobs.yaml.new manifests/crd/pipelinejobs.yaml
	cp manifests/crd/pipelinejobs.yaml charts/stagecoach/files/pipelinejobs.yaml

lint: libtorch tools deny ## checks formatting, lints, licences, and the order of crates and modules
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	python3 scripts/check_modules.py

deny: tools $(DENY)
	@$(DENY) --log-level error check licenses bans sources

$(DENY):
	@echo "building cargo-deny $(DENY_VERSION) (once, into $(CACHE))"
	@# cargo-deny runs for a second, and an optimised build would take minutes longer
	@CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --debug --locked --version $(DENY_VERSION) --root $(dir $(@D)) cargo-deny

trainer: libtorch tools ## builds only the trainer, as target/debug/stagecoach
	@echo "building the trainer: some 300 crates, minutes the first time"
	@# --workspace enables the features of all packages, so that `make test` compiles none of these crates again
	cargo build --workspace --bin stagecoach --bin stagecoach-entrypoint

build: libtorch tools ## builds the trainer, the operator, and the programs that tests run
	@echo "building trainer, operator and what the tests run (1 of 2 builds with \`make test\`): minutes the first time"
	cargo build --workspace

release: libtorch tools ## writes images, kubectl plugin, chart, SBOMs and checksums to dist/; needs root on Debian
	@scripts/release.sh $(CACHE) dist

reproducible: tools ## builds the operator in two folders, and requires the same bytes
	@scripts/reproducible.sh

libtorch: tools ## downloads libtorch into .libtorch/, and verifies its hash
	@python3 scripts/fetch.py libtorch .libtorch

nvrtc: tools ## downloads NVIDIA's compiler for GPU kernels into a cache folder, for a test, and verifies its hash
	@python3 scripts/fetch.py nvrtc $(CACHE)/nvrtc
	@echo $(NVRTC)

# The sources of the crates that this machine needs.
crates: tools
	@cargo fetch --quiet --target $$(rustc -vV | sed -n 's/^host: //p')

# These downloads wait for different servers, so they run in parallel.
downloads: tools
	@$(MAKE) --no-print-directory --jobs libtorch crates texts

texts: tools ## downloads the Shakespeare plays into the workspace, and verifies their hash
	@python3 scripts/fetch.py texts $(WORKSPACE)/corpus/shakespeare

torch: tools $(TORCH) ## installs PyTorch (3 GB) into a cache folder, for `make bench`, `make gpu` and `make transformers`

$(TORCH):
	@echo "installing PyTorch $(TORCH_VERSION) for the benchmark (once, into $@)"
	@python3 -m pip install --quiet --target $@.new torch==$(TORCH_VERSION) numpy safetensors
	@mv $@.new $@

cluster-tools: ## builds Kubernetes and etcd for the tests, once, into a cache folder; needs Go 1.26
	@tests/cluster/tools.sh $(CACHE) $(TOOLS) >/dev/null

# Checks the prerequisites. The message about a missing one names the remedy.
tools:
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust 1.95 or newer from https://rustup.rs" >&2; exit 1; }
	@command -v c++ >/dev/null || { echo "a C++ compiler is missing: install g++ (Debian: apt-get install g++)" >&2; exit 1; }
	@command -v python3 >/dev/null || { echo "python3 is missing: install it with pip (Debian: apt-get install python3 python3-pip)" >&2; exit 1; }
	@python3 -m pip --version >/dev/null 2>&1 || { echo "python3 has no pip: install it (Debian: apt-get install python3-pip)" >&2; exit 1; }

clean: ## removes build output, but not the workspace and .libtorch
	cargo clean
