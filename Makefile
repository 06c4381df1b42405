# What one types here; `make help` lists it.

# Everything is compiled in one way, static and without the folder's name, as `make build` does: the build cache then holds each
# package once, and tests, programs and the commands of the README share it. Only the race detector needs another.
export CGO_ENABLED := 0
export GOFLAGS     := $(GOFLAGS) -trimpath

GO            ?= go
TOOLS         := $(CURDIR)/.tools
GOLANGCI      := v2.11.4
FUZZTIME      ?= 30s
KILLS         ?= 50
SEEDS         ?= 20
FIRST         ?= 1
NETWORK       ?= ci
PROVIDER      ?= process
VERSION       ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS       := -X github.com/starling-kv/starling/node/buildinfo.Version=$(VERSION)

# The packages of the node. The root's tests run the README's commands; those of e2e and localnet drive networks of processes.
UNIT_PACKAGES  = $(shell $(GO) list ./... | grep -v -e /e2e -e /cmd/localnet -e 'starling$$')
E2E_PACKAGES   = ./e2e/... ./cmd/localnet/...
# Nothing in these runs concurrently: the race detector finds nothing in them that the plain run of their tests does not.
PURE_PACKAGES  = /tx$$|/statesync/scheduler$$|/health$$|/internal/(hexruns|bubble)$$|/networks/
RACE_PACKAGES  = $(shell $(GO) list ./... | grep -v -e /e2e -e /cmd/localnet -e 'starling$$' | grep -v -E '$(PURE_PACKAGES)')

.PHONY: help build build-rdma image install release release-check test check checks race debug oracle bench cosmos e2e e2e-docker e2e-network e2e-random torture test-rdma lint fuzz proto kernels vectors clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | column -t -s "$$(printf '\t')"

build: ## build starlingd into build/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o build/ ./cmd/starlingd

build-rdma: ## build starlingd-rdma into build/: with RDMA, which needs glibc, and here a C compiler and libibverbs-dev
	CGO_ENABLED=1 $(GO) build -tags rdma -trimpath -ldflags '$(LDFLAGS)' -o build/starlingd-rdma ./cmd/starlingd

install: ## install starlingd into GOBIN
	CGO_ENABLED=0 $(GO) install -trimpath -ldflags '$(LDFLAGS)' ./cmd/starlingd

release: ## static binaries for linux and darwin in build/release, the same bytes wherever they are built, with checksums
	GO='$(GO)' scripts/release.sh build/release

release-check: ## build the release of linux/amd64 in two folders and compare
	GO='$(GO)' scripts/release-check.sh

image: ## build the image starling:latest, FROM scratch around the static binary (needs Docker)
	networks/build-image.sh

test: ## what every change must pass, in ten minutes at most: unit tests, scripts, vectors, the README's commands with a network of liars
	$(GO) build -o build/programs/ ./cmd/starlingd ./cmd/localnet ./e2e/byzantine
	@absent() { command -v $$1 >/dev/null || echo "NOT RUN: $$2 (no $$1 here)"; }; \
	absent python3 'the Python example'; absent promtool 'the check of alerts'; absent systemd-analyze 'the check of the systemd unit'
	@$(GO) test -count=1 -v -run '^TestAbsent$$' ./avlstar/sha256mb | grep -o 'NOT RUN: .*' || true
	@# Many of them wait for blocks: four packages at a time keep two cores busy, and so do four of their tests.
	$(GO) test -p 4 -parallel 4 -timeout 20m $(UNIT_PACKAGES)
	cd cosmos && $(GO) test -timeout 20m ./...
	$(GO) test -count=1 -timeout 20m .

# The stages of `make check`; .ci/run times each.
CHECKS := race debug oracle bench cosmos e2e test-rdma

checks:
	@echo $(CHECKS)

check: $(CHECKS) ## everything else: race detector, debug checks, the iavl oracles, the benchmarks' tests, all networks, RDMA

race: ## the unit tests with fewer rounds, under the race detector (which needs a C compiler)
	@if command -v $${CC:-gcc} >/dev/null; then \
	  set -x; CGO_ENABLED=1 $(GO) test -race -short -vet=off -p 4 -parallel 4 -timeout 25m $(RACE_PACKAGES); \
	else echo 'NOT RUN: the race detector (no C compiler here)'; fi

debug: ## the tree's tests without assembly, with every version checked as a whole
	$(GO) test -tags purego,avlstardebug -short -vet=off -timeout 10m ./avlstar/...

oracle: ## compare the tree's shape with cosmos/iavl (a module of its own, so that iavl never reaches the node)
	cd avlstar/oracle && $(GO) test -timeout 10m ./...

bench: ## the tests of starling-bench, which run it on a few keys (a module of its own, so that the peers never reach the node)
	@# They build programs of other modules, whose changes Go's cache of test results does not see.
	cd bench && $(GO) test -count=1 -timeout 20m ./...

cosmos: ## joins of IAVL chains; the SDK's stores over our tree; cosmos/iavlsync and nodedb against cosmos/iavl v1.3, and v1.2 in the SDK's store (modules of their own)
	cd cosmos/tables && $(GO) test -timeout 20m ./...
	cd cosmos/serve && $(GO) test -timeout 20m ./...
	cd cosmos/join && $(GO) test -timeout 20m ./...
	cd cosmos/cmd/starling-iavl && $(GO) test -timeout 20m ./...
	@# CometBFT's own Pebble is behind a build tag.
	cd cosmos/cmd/starling-iavl && $(GO) test -tags pebbledb -timeout 20m -run '^TestCometState$$|^TestStoppedAlone$$' .
	cd cosmos/sdk/serve && $(GO) test -timeout 20m ./...
	@# As in bench.
	cd cosmos/sdk/simd && $(GO) test -count=1 -timeout 20m ./...
	cd cosmos/store && $(GO) test -timeout 20m ./...
	cd cosmos/sdk/mounted && $(GO) test -timeout 20m ./...
	cd cosmos/iavlsync/oracle && $(GO) test -timeout 20m ./...
	cd cosmos/iavlsync/oracle/old && $(GO) test -timeout 20m ./...
	cd cosmos/iavlsync/oracle/sdk && $(GO) test -timeout 20m ./...

e2e: ## networks of processes on loopback, and of containers where there is Docker
	@absent() { command -v $$1 >/dev/null || echo "NOT RUN: $$2 (no $$1 here)"; }; \
	absent docker 'tests of containers, the image and networks/'; absent prometheus "the dashboard's queries"; \
	absent chromium 'the status page in a browser'; \
	test "$$(git rev-parse --is-shallow-repository 2>/dev/null)" = false || echo 'NOT RUN: the upgrade from an older build (no whole clone)'; \
	test "$$(id -u)" = 0 || echo 'NOT RUN: full disks (they need root)'
	@# Networks wait for blocks: two packages at a time.
	$(GO) test -count=1 -p 2 -timeout 40m $(E2E_PACKAGES)

e2e-docker: ## the networks ci and byzantine of e2e/networks as Docker containers (needs Docker)
	STARLING_E2E_PROVIDER=docker STARLING_E2E_NETWORKS=ci,byzantine $(GO) test -count=1 -v -timeout 30m -run '^TestNetworks$$' ./e2e

e2e-network: ## one network of e2e/networks: NETWORK=wan PROVIDER=docker (ci, process)
	STARLING_E2E_PROVIDER=$(PROVIDER) STARLING_E2E_NETWORKS=$(NETWORK) $(GO) test -count=1 -v -timeout 120m -run '^TestNetworks$$' ./e2e

e2e-random: ## SEEDS (20) generated networks with perturbations, one after another, from seed FIRST (1) on
	STARLING_E2E_PROVIDER=$(PROVIDER) STARLING_E2E_SEEDS=$(SEEDS) STARLING_E2E_FIRST=$(FIRST) $(GO) test -count=1 -v -timeout 240m -run '^TestNetworks$$' ./e2e

torture: ## kill a validator KILLS times (50) while clients write, then again with a state that is not all in memory, then storage nodes and sharded validators (`make e2e`: a few times)
	STARLING_TORTURE_KILLS=$(KILLS) $(GO) test -count=1 -v -timeout 60m -run '^TestTorture$$' ./e2e
	STARLING_TORTURE_KILLS=$(KILLS) STARLING_TORTURE_PAGED=true $(GO) test -count=1 -v -timeout 60m -run '^TestTorture$$' ./e2e
	STARLING_TORTURE_KILLS=$(KILLS) $(GO) test -count=1 -v -timeout 60m -run '^TestTortureSharded$$' ./e2e

test-rdma: ## the tests of RDMA, in a guest of QEMU with Soft-RoCE (needs QEMU and libibverbs-dev, which it installs as root, and a C compiler)
	GO='$(GO)' transport/rdma/guest/test.sh

lint: $(TOOLS)/golangci-lint-$(GOLANGCI) ## golangci-lint with .golangci.yml
	$(TOOLS)/golangci-lint-$(GOLANGCI) run ./...
	cd bench && $(TOOLS)/golangci-lint-$(GOLANGCI) run --config ../.golangci.yml ./...
	cd bench/etcdstore && $(TOOLS)/golangci-lint-$(GOLANGCI) run --config ../../.golangci.yml ./...
	cd bench/ops && $(TOOLS)/golangci-lint-$(GOLANGCI) run --config ../../.golangci.yml ./...
	cd bench/sdknode && $(TOOLS)/golangci-lint-$(GOLANGCI) run --config ../../.golangci.yml ./...
	cd bench/storeops && $(TOOLS)/golangci-lint-$(GOLANGCI) run --config ../../.golangci.yml ./...
	cd cosmos && $(TOOLS)/golangci-lint-$(GOLANGCI) run --config ../.golangci.yml ./...
	cd cosmos/tables && $(TOOLS)/golangci-lint-$(GOLANGCI) run --config ../../.golangci.yml ./...
	cd cosmos/serve && $(TOOLS)/golangci-lint-$(GOLANGCI) run --config ../../.golangci.yml ./...
	cd cosmos/join && $(TOOLS)/golangci-lint-$(GOLANGCI) run --config ../../.golangci.yml ./...
	cd cosmos/cmd/starling-iavl && $(TOOLS)/golangci-lint-$(GOLANGCI) run --config ../../../.golangci.yml ./...
	cd cosmos/sdk/serve && $(TOOLS)/golangci-lint-$(GOLANGCI) run --config ../../../.golangci.yml ./...
	cd cosmos/sdk/simd && $(TOOLS)/golangci-lint-$(GOLANGCI) run --config ../../../.golangci.yml ./...
	cd cosmos/store && $(TOOLS)/golangci-lint-$(GOLANGCI) run --config ../../.golangci.yml ./...
	cd cosmos/sdk/mounted && $(TOOLS)/golangci-lint-$(GOLANGCI) run --config ../../../.golangci.yml ./...

$(TOOLS)/golangci-lint-$(GOLANGCI):
	GOFLAGS=-trimpath GOBIN=$(TOOLS) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI)
	mv $(TOOLS)/golangci-lint $@

fuzz: ## run every fuzz target for FUZZTIME (30s)
	@set -e; for module in . cosmos; do cd $(CURDIR)/$$module; for pkg in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$target"; $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s $$pkg; \
	  done; done; done

proto: ## regenerate the protobuf code (needs protoc)
	$(GO) generate ./tx ./app

kernels: ## regenerate the assembly of sha256mb (its generator is a module of its own, so that avo never reaches the node)
	$(GO) generate ./avlstar/sha256mb

vectors: ## regenerate our own test vectors; a change of a frozen format shows up in git diff
	$(GO) test ./avlstar ./tx ./app -run Vectors -update
	cd cosmos && $(GO) test ./iavlsync -run Vectors -update

clean: ## remove what was built
	rm -rf build .tools
