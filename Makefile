# `make help` lists what there is. As root, on Debian or Ubuntu: what is missing is installed.
# cargo is looked for where rustup puts it too.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
SHELL := /bin/bash
.DEFAULT_GOAL := help

SCRIPTS := .ci/run tests/all tests/bench tests/bench-local tests/bench-stage tests/csc tests/demo tests/demo-local tests/metrics tests/quota \
           tests/sanity tests/check.sh tests/driver.sh tests/image tests/measure.sh tests/steps.sh tests/deploy/run tests/deploy/quickstart \
           tests/lab/ceph tests/lab/ceph-18 tests/lab/agent tests/lab/bin-18/in-tree tests/lab/debian.sh tests/lab/image \
           tests/lab/in-image tests/lab/install tests/lab/kube tests/lab/net tests/lab/prometheus tests/lab/tools tests/lab/vm

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: cargo ## The release binary, target/release/ceph-rbd-csi
	cargo build --release

# The dates in the image are that of the last change.
IMAGE ?= ceph-rbd-csi:$(shell sed -n 's/^version = "\(.*\)"/\1/p;/^\[dependencies/q' Cargo.toml)
epoch = $(shell git log -1 --format=%ct)

.PHONY: image
image: ## The container image, ceph-rbd-csi:VERSION, by docker, podman or buildah, whichever runs here; IMAGE_FLAGS go to it
	@if docker info >/dev/null 2>&1; then SOURCE_DATE_EPOCH=$(epoch) docker build $(IMAGE_FLAGS) --tag $(IMAGE) .; \
	elif command -v podman >/dev/null; then podman build --timestamp=$(epoch) $(IMAGE_FLAGS) --tag $(IMAGE) .; \
	elif command -v buildah >/dev/null; then buildah build --timestamp=$(epoch) $(IMAGE_FLAGS) --tag $(IMAGE) .; \
	else echo "neither docker nor podman nor buildah runs here: install one" >&2; exit 1; fi

.PHONY: check
check: cargo ## The quick one: format, clippy, unit tests, house rules; needs no cluster and no root
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	cargo test --bins --test tidy --test docs
	@if command -v shellcheck >/dev/null; then shellcheck -x $(SCRIPTS); fi

.PHONY: demo
demo: ## One volume's whole life on a throwaway Ceph cluster, step by step
	@tests/demo

.PHONY: demo-local
demo-local: ## The same without Ceph, on folders and loop devices, with snapshot, clone and growth
	@tests/demo-local

.PHONY: test
test: ## Everything that is tested: units, wire contract, both backends, csi-sanity, csc, manifests, image, virtual machines
	@tests/all

.PHONY: test-deploy
test-deploy: cargo ## Manifests and chart against a real kube-apiserver, its sidecars and their rights (no cluster needed)
	@tests/lab/install kube go rust
	cargo build --quiet
	@tests/deploy/run

.PHONY: test-vm
test-vm: ## Only what needs another kernel: krbd, rbd-nbd, LUKS and kills in a virtual machine (no KVM needed)
	@tests/all vm

.PHONY: test-image
test-image: ## Only the container image: built without a registry, and each of its programs run
	@tests/all image

.PHONY: test-all
test-all: ## The same with the long parts: hundreds of kills, ten thousand images, random and hostile calls, a second Ceph (18.2)
	@BOTH_CEPHS=1 IMAGE_TWICE=1 GUEST=all KILLS=all CLUSTER_KILLS=600 CLUSTER_IMAGES=10000 LOCAL_KILLS=60 LOCAL_CASES=200 FUZZ_CALLS=10000 FUZZ_SEED= tests/all

.PHONY: bench
bench: ## What the driver costs, beside the bare commands: without Ceph, on a throwaway cluster, on a real kernel
	@tests/lab/install
	@tests/lab/tools
	cargo build --release --quiet
	@tests/bench-local
	@tests/bench
	@tests/lab/net with tests/lab/ceph with tests/bench-stage

.PHONY: fmt
fmt: cargo ## Formats the Rust code
	cargo fmt

.PHONY: clean-lab
clean-lab: ## Takes down the throwaway clusters in $TMPDIR: what killed runs left, and running ones too
	@for lab in $${TMPDIR:-/tmp}/ceph-lab.*; do [ ! -e "$$lab/env" ] || tests/lab/ceph down "$$lab"; done

.PHONY: cargo
cargo:
	@command -v cargo >/dev/null || { \
	    echo "cargo is missing: install Rust 1.88 or newer (https://rustup.rs) and try again" >&2; exit 1; }
