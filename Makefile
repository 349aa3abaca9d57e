# Building, trying and testing Sluice. `make` alone lists what there is.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help

# What may be set: `make cluster CLUSTER_NAME=mine`, or in the environment.
CLUSTER ?= own#                   own: a cluster that is started here; current: that of the current kubeconfig context
CLUSTER_NAME ?= sluice#           tells clusters that are started here apart
TEST_CLUSTER_NAME ?= sluice-test# the one of `make test`, `e2e`, `chaos`, `upgrade-loop` and `bench`
MINUTES ?= 10#                    of `make upgrade-loop`
PROFILE ?= debug#                 debug or release
IMAGE ?= cluster.local/sluice:dev
CARGO_BUILD_JOBS ?= $(shell nproc)
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CLUSTER CLUSTER_NAME TEST_CLUSTER_NAME PROFILE CARGO_BUILD_JOBS CARGO_TARGET_DIR SLUICE_IMAGE SLUICE_TEST_STEP_IMAGE KEEP

# Where Rust, Go and `cluster install` put things, for shells that know nothing of it.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/local/go/bin:$(or $(CLUSTER_HOME),/var/tmp/cluster)/bin

crds := charts/sluice/files/crds.yaml
with := tests/cluster/with
host = $(shell rustc -vV | sed -n 's/^host: //p')

.PHONY: help demo cluster down test check unit fuzz e2e chaos upgrade-loop bench bench-held bench-hostile image generate fmt clean
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo '  CLUSTER_NAME=NAME    several clusters side by side (default sluice)'
	@echo '  CLUSTER=current      use the cluster of your current kubeconfig context instead (see CONTRIBUTING.md)'
	@echo '  PROFILE=release      an optimised build in the cluster'
	@echo '  KEEP=1               leave the cluster of `make e2e` up to look at it'

demo: cluster ## the example, step by step, on a cluster that stays up
	@$(with) examples/graphql-ingress/run
	@echo
	@echo 'The cluster stays up. To look around:'
	@tests/cluster/usage

cluster: tools build up ## a cluster with Sluice installed, to try things
	@tests/cluster/install-sluice
	@echo
	@echo 'Sluice is installed. To look around:'
	@tests/cluster/usage

down: ## take the cluster down, with everything in it (CLUSTER=current: uninstall the chart)
	@if [ '$(CLUSTER)' = current ]; then helm uninstall sluice --namespace sluice-system --ignore-not-found --wait; else tests/cluster/cluster down; fi

test: check-fmt check-clippy unit fuzz check-generated check-chart check-dependencies check-image e2e ## everything, as the CI does; its own cluster, gone afterwards
	@echo 'make test: all is well'

check: check-fmt check-clippy check-generated check-chart check-dependencies check-image ## what needs no cluster and no tests: format, lints, drift, chart, dependencies, image

unit: need-rust ## unit and documentation tests
	cargo test --locked --lib --bins --test agent --test cases --test life --test chaos-checker --test rights --test world
	cargo test --locked --doc

fuzz: need-rust ## feed what users can write to the parsers, as nonsense, for 10 s each (fuzz/run 600 for longer)
	@fuzz/run

e2e: tools build ## the end-to-end suite on a cluster of its own, and its rights compared with those it used
	cargo test --locked --test e2e --test rights --no-run
	@tests/cluster/e2e tests/cluster/suite

bench: export PROFILE = release
bench: export CLUSTER_AUDIT = off
bench: tools build ## every number of docs/performance.md, on a cluster of its own; writes them into that page
	cargo build --locked -q --release --example bench
	cargo bench --locked -q --bench planner
	@tests/cluster/e2e $(CARGO_TARGET_DIR)/$(host)/release/examples/bench

bench-hostile: export PROFILE = release
bench-hostile: export CLUSTER_AUDIT = off
bench-hostile: tools build ## memory, and what others wait, while Sluice is attacked, on a cluster of its own; some 5 minutes
	cargo build --locked -q --release --example bench
	@tests/cluster/e2e $(CARGO_TARGET_DIR)/$(host)/release/examples/bench hostile

bench-held: export CLUSTER_AUDIT = off
bench-held: up build ## what held changes cost the API server's other users, measured on a cluster with Sluice in it
	@tests/cluster/install-sluice
	cargo build --locked -q --example held
	@$(with) $(CARGO_TARGET_DIR)/$(host)/debug/examples/held

chaos: tools build ## ten minutes of load while replicas, pods and the API server are killed; then the history is checked
	cargo test --locked --test chaos --no-run
	@timeout 600 tests/cluster/e2e cargo test --locked --offline -q --test chaos -- run

upgrade-loop: tools build ## ten small changes a second while Sluice is upgraded over and over (MINUTES=10)
	cargo test --locked --test chaos --no-run
	@MINUTES='$(MINUTES)' tests/cluster/e2e cargo test --locked --offline -q --test chaos -- upgrade-loop

image: need-rust ## the release image as target/sluice.tar, without Docker (IMAGE=repository:tag names it)
	cargo build --locked --release
	@mkdir -p target
	@PROFILE=release tests/cluster/sluice-image $(IMAGE) >target/sluice.tar
	@echo 'target/sluice.tar is $(IMAGE): kind load image-archive target/sluice.tar, or docker load <target/sluice.tar'

generate: tools need-rust ## write what is generated: the chart's CRDs, its tables of values and rights, the page of the command line
	@cargo run --locked -q -- crds >$(crds).new && mv $(crds).new $(crds) || { rm -f $(crds).new; exit 1; }
	@charts/sluice/values-table --write
	@charts/sluice/rbac-table --write
	@docs/reference/cli-page --write

fmt: need-rustfmt ## format the code
	cargo fmt

clean: ## remove what was built (clusters are taken down by `make down`)
	cargo clean
	rm -f target/sluice.tar

# --- the parts of the above ---------------------------------------------------------------------------------------

.PHONY: build up tools check-tools check-fmt check-clippy check-generated check-chart check-dependencies check-image need-jq need-rust need-rustfmt need-clippy
build: need-rust
	@echo 'building Sluice: some minutes the first time'
	@cargo build --locked -q $(if $(filter release,$(PROFILE)),--release)

up:
	@[ '$(CLUSTER)' = current ] || tests/cluster/cluster up >/dev/null

tools:
	@if [ '$(CLUSTER)' != current ]; then tests/cluster/cluster install; fi

check-tools: need-rust
	@tests/checks/install

check-fmt: need-rustfmt
	cargo fmt --check

check-clippy: need-clippy
	cargo clippy --locked --all-targets -q -- -D warnings

check-generated: tools need-rust need-jq
	@cargo run --locked -q -- crds | diff -u $(crds) - >$(CARGO_TARGET_DIR)/crds.diff || \
	  { sed -n '1,40p' $(CARGO_TARGET_DIR)/crds.diff; echo 'make: $(crds) is not what src/api says: run make generate, and look at the difference' >&2; exit 1; }
	@charts/sluice/values-table --check
	@charts/sluice/rbac-table --check
	@docs/reference/cli-page --check
	@cargo tree --locked -q --manifest-path fuzz/Cargo.toml >/dev/null || { echo 'make: fuzz/Cargo.lock is behind Cargo.toml: cargo tree --manifest-path fuzz/Cargo.toml' >&2; exit 1; }

check-chart: tools
	@command -v helm >/dev/null || { echo 'make: helm is missing: https://helm.sh/docs/intro/install/' >&2; exit 1; }
	helm lint --strict --quiet charts/sluice

check-dependencies: check-tools
	tests/checks/dependencies

check-image: check-tools
	tests/checks/dockerfile
	tests/checks/image

need-rust:
	@command -v cargo >/dev/null || { echo 'make: Rust is missing: https://rustup.rs' >&2; exit 1; }
	@command -v cc >/dev/null || { echo 'make: a C compiler is missing, which Rust links with: apt-get install gcc libc6-dev' >&2; exit 1; }

need-rustfmt: need-rust
	@cargo fmt --version >/dev/null 2>&1 || { echo 'make: rustfmt is missing: rustup component add rustfmt' >&2; exit 1; }

need-clippy: need-rust
	@cargo clippy --version >/dev/null 2>&1 || { echo 'make: clippy is missing: rustup component add clippy' >&2; exit 1; }

need-jq:
	@command -v jq >/dev/null || { echo 'make: jq is missing: apt-get install jq' >&2; exit 1; }
