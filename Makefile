# What one types here; `make help` lists it.

# Everything is compiled in one way, static and without the folder's name, as `make build` does: the build cache then holds each
# package once, and tests, programs and the commands of the README share it. Only the race detector needs another.
export CGO_ENABLED := 0
export GOFLAGS     := $(GOFLAGS) -trimpath

GO            ?= go
TOOLS         := $(CURDIR)/.tools
GOLANGCI      := v2.11.4
MISSPELL      := v0.8.0
HUGO          := v0.162.0
D2            := v0.7.2
FUZZTIME      ?= 30s
KILLS         ?= 50
SEEDS         ?= 20
FIRST         ?= 1
NETWORK       ?= ci
PROVIDER      ?= process
VERSION       ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS       := -X github.com/starling-kv/starling/node/buildinfo.Version=$(VERSION)

# The modules, one per folder. A new module is tested by the target of its parent folder.
MODULES       := $(patsubst %/,%,$(dir $(shell git ls-files --cached --others --exclude-standard '*go.mod' 2>/dev/null)))
ORACLE_MODULES = $(filter cosmos/oracle,$(MODULES))
COSMOS_MODULES = $(filter-out $(ORACLE_MODULES),$(filter cosmos cosmos/%,$(MODULES)))
BENCH_MODULES  = $(filter bench bench/%,$(MODULES))
UNTESTED       = $(filter-out . $(ORACLE_MODULES) $(COSMOS_MODULES) $(BENCH_MODULES),$(MODULES))
EACH          := $(CURDIR)/scripts/each-module.sh
# The flags that compile cosmos/sdk for the SDK's generation before (docs/decisions/0061-sdk-generations.md).
SDK053        := -tags=sdk053 -modfile=sdk053.mod

# The packages of the node. internal/lint runs the README's commands; the other omitted packages drive networks of processes.
UNIT_PACKAGES  = $(shell $(GO) list ./... | grep -v -e /e2e -e /cmd/localnet -e '/networks/[hj]' -e '/internal/lint$$')
E2E_PACKAGES   = ./e2e/... ./cmd/localnet/... ./networks/joining
# Packages without concurrency: the race detector finds nothing in them.
PURE_PACKAGES  = /tx$$|/statesync/scheduler$$|/health$$|/internal/(hexruns|bubble)$$
RACE_PACKAGES  = $(shell $(GO) list ./... | grep -v -e /e2e -e /cmd/localnet -e '/networks/[hj]' -e '/internal/lint$$' | grep -v -E '$(PURE_PACKAGES)')

# Tests that are slow under the race detector. They have one goroutine, or other tests cover what their goroutines do.
RACE_SKIP      = ^(TestMemoryReturns|TestIndexGrows|TestRandomBlocks|TestPagedLeftEdge|TestDamagedProofs|TestDamagedRangeProofs)$$
RACE_SKIP     := $(RACE_SKIP)|^(TestVisits|TestKept|TestVectors|TestModelLong|TestCostOfABlock|TestReadsOfABlockAreBounded)$$
RACE_SKIP     := $(RACE_SKIP)|^(TestKeptVersionsAreBoundedByBytes|TestManyRevokesBeforeTexts|TestDecoderForgets|TestResultsAreBounded)$$
RACE_SKIP     := $(RACE_SKIP)|^(TestDamagedTables|TestScrubBesideBlocks|TestStoreEqualsAMap|TestCompactAndMetrics|TestDamage)$$
RACE_SKIP     := $(RACE_SKIP)|^(TestSegmentThatCannotBeRead|TestReadsByKeyEqualTheModel|TestDamagedFiles|TestDamagedSegments)$$
RACE_SKIP     := $(RACE_SKIP)|^(TestSecretsStaySecret|TestPrecompileVectors)$$
RACE_SKIP     := $(RACE_SKIP)|^TestScripts$$/^(admins|config|environment|genesis|init|keys|offline|small|upgrade_peers|usage|validator)$$

# $(call timed,WHAT,COMMAND) runs a command, and prints WHAT before and the seconds after it.
timed = @echo "=== $(1)"; from=$$(date +%s); $(2) && echo "=== $$(($$(date +%s) - from)) s: $(1)"

.PHONY: help build build-rdma localnet image install release release-check test check checks modules race debug oracle bench cosmos cosmos-real e2e e2e-docker e2e-network e2e-random torture test-rdma lint fuzz proto kernels vectors pictures docs site diagrams screenshots clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | column -t -s "$$(printf '\t')"

build: ## build starlingd into build/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o build/ ./cmd/starlingd

build-rdma: ## build starlingd-rdma into build/, with RDMA (needs glibc, a C compiler and libibverbs-dev)
	CGO_ENABLED=1 $(GO) build -tags rdma -trimpath -ldflags '$(LDFLAGS)' -o build/starlingd-rdma ./cmd/starlingd

localnet: ## a network on this machine with Byzantine peers, and a node that joins it; ARGS=--help lists the options
	$(call timed,compiling localnet: minutes with an empty build cache,$(GO) build -v -o build/programs/ ./cmd/localnet)
	@exec build/programs/localnet $(ARGS)

install: ## install starlingd into GOBIN
	CGO_ENABLED=0 $(GO) install -trimpath -ldflags '$(LDFLAGS)' ./cmd/starlingd

release: ## build reproducible static binaries for linux and darwin in build/release, with checksums
	GO='$(GO)' scripts/release.sh build/release

release-check: ## build the release of linux/amd64 in two folders and compare
	GO='$(GO)' scripts/release-check.sh

image: ## build the image starling:latest, FROM scratch around the static binary (needs Docker)
	networks/build-image.sh

test: ## the tests that every change must pass, in ten minutes at most: unit tests, scripts, vectors, the README's commands
	@# -v names each package as it is compiled. `go vet` is part of `make lint`: here it would analyse a thousand third-party packages.
	$(call timed,compiling starlingd: minutes with an empty build cache,$(GO) build -v -o build/programs/ ./cmd/starlingd)
	@absent() { command -v $$1 >/dev/null || echo "NOT RUN: $$2 (no $$1 here)"; }; \
	absent python3 'the Python example'; absent promtool 'the check of alerts'; absent systemd-analyze 'the check of the systemd unit'
	@$(GO) test -count=1 -v -run '^TestAbsent$$' ./avlstar/sha256mb | grep -o 'NOT RUN: .*' || true
	@# Many tests wait for blocks: four packages with four tests each keep two cores busy.
	$(call timed,unit tests,$(GO) test -vet=off -p 4 -parallel 4 -timeout 20m $(UNIT_PACKAGES))
	$(call timed,the README's commands and the rules of the whole repository,$(GO) test -vet=off -count=1 -timeout 20m ./internal/lint)

# The stages of `make check`; .ci/run times each, and leaves out the last ones on a slow machine.
CHECKS := race e2e cosmos bench test-rdma oracle debug docs

checks:
	@$(if $(UNTESTED),$(error no target tests $(UNTESTED)))echo $(CHECKS)

modules:
	@echo $(MODULES)

check: $(CHECKS) ## all other checks: race detector, debug checks, the iavl oracles, the benchmarks' tests, all networks, RDMA, the site of the documents

race: ## the unit tests with fewer rounds, under the race detector (which needs a C compiler)
	@if command -v $${CC:-gcc} >/dev/null; then \
	  set -x; CGO_ENABLED=1 $(GO) test -race -short -vet=off -p 4 -parallel 4 -timeout 60m -skip '$(RACE_SKIP)' $(RACE_PACKAGES); \
	else echo 'NOT RUN: the race detector (no C compiler here)'; fi

debug: ## the tree's tests without assembly, with a full check of every version; a test of builds with the tag noevm
	$(GO) test -tags purego,avlstardebug -short -vet=off -timeout 10m ./avlstar/...
	@# A build without the engine of programs.
	$(GO) test -tags noevm -vet=off -run '^TestUpgradeErrorWithoutEngine$$' ./app

oracle: ## compare the tree, and the formats for IAVL chains, with cosmos/iavl v1.3 (a module of its own, so that iavl never reaches the node)
	$(EACH) '$(ORACLE_MODULES)' $(GO) test -vet=off -timeout 20m ./...

bench: ## the tests of starling-bench, which run it on a few keys (a module of its own, so that the peers never reach the node)
	@# They build programs of other modules, whose changes Go's cache of test results does not detect.
	$(EACH) '$(BENCH_MODULES)' $(GO) test -vet=off -count=1 -timeout 20m ./...

cosmos: ## everything for chains of the Cosmos SDK except make oracle (modules of their own, so that the SDK never reaches the node)
	$(EACH) cosmos $(GO) test -vet=off -timeout 20m ./...
	@# CometBFT's own Pebble is behind a build tag.
	$(EACH) cosmos $(GO) test -vet=off -tags pebbledb -timeout 20m -run '^TestCometState$$|^TestStoppedAlone$$' ./cmd/starling-iavl
	@# -count=1 as in bench.
	$(EACH) '$(filter-out cosmos,$(COSMOS_MODULES))' $(GO) test -vet=off -count=1 -timeout 20m ./...
	@# These packages also support SDK v0.53.
	$(EACH) cosmos/sdk $(GO) test -vet=off $(SDK053) -count=1 -timeout 20m ./serve ./simd

cosmos-real: ## builds gaiad v28.0.0 from public sources, and joins its chain (needs a C compiler; not part of make check)
	scripts/cosmos-real.sh

e2e: ## networks of processes on loopback, and of containers where there is Docker
	@absent() { command -v $$1 >/dev/null || echo "NOT RUN: $$2 (no $$1 here)"; }; \
	absent docker 'tests of containers, the image and networks/'; absent prometheus "the dashboard's queries"; \
	absent chromium 'the status page in a browser'; \
	test "$$(git rev-parse --is-shallow-repository 2>/dev/null)" = false || echo 'NOT RUN: the upgrade from an older build (no whole clone)'; \
	test "$$(id -u)" = 0 || echo 'NOT RUN: full disks, little memory (they need root)'
	@# Networks wait for blocks: two packages at a time.
	$(GO) test -vet=off -count=1 -p 2 -timeout 80m $(E2E_PACKAGES)

e2e-docker: ## the networks ci and byzantine of e2e/networks as Docker containers (needs Docker)
	STARLING_E2E_PROVIDER=docker STARLING_E2E_NETWORKS=ci,byzantine $(GO) test -count=1 -v -timeout 30m -run '^TestNetworks$$' ./e2e

e2e-network: ## one network of e2e/networks: NETWORK=wan PROVIDER=docker (ci, process)
	STARLING_E2E_PROVIDER=$(PROVIDER) STARLING_E2E_NETWORKS=$(NETWORK) $(GO) test -count=1 -v -timeout 120m -run '^TestNetworks$$' ./e2e

e2e-random: ## SEEDS (20) generated networks with perturbations, one after another, from seed FIRST (1) on
	STARLING_E2E_PROVIDER=$(PROVIDER) STARLING_E2E_SEEDS=$(SEEDS) STARLING_E2E_FIRST=$(FIRST) $(GO) test -count=1 -v -timeout 240m -run '^TestNetworks$$' ./e2e

torture: ## kill a validator KILLS times (50) while clients write, then again with a state that is partly on disk, then storage nodes and sharded validators, then cut a validator's power (`make e2e`: a few times)
	STARLING_TORTURE_KILLS=$(KILLS) $(GO) test -count=1 -v -timeout 60m -run '^TestTorture$$' ./e2e
	STARLING_TORTURE_KILLS=$(KILLS) STARLING_TORTURE_PAGED=true $(GO) test -count=1 -v -timeout 60m -run '^TestTorture$$' ./e2e
	STARLING_TORTURE_KILLS=$(KILLS) $(GO) test -count=1 -v -timeout 60m -run '^TestTortureSharded$$' ./e2e
	STARLING_TORTURE_KILLS=$(KILLS) $(GO) test -count=1 -v -timeout 60m -run '^TestPowerOff$$' ./e2e

test-rdma: ## the tests of RDMA, in a QEMU VM with Soft-RoCE (needs QEMU and libibverbs-dev, which it installs as root, and a C compiler)
	GO='$(GO)' transport/rdma/guest/test.sh

lint: $(TOOLS)/golangci-lint-$(GOLANGCI) ## golangci-lint with .golangci.yml, in every module, and the spelling of documents (it checks that of Go files, too)
	git ls-files '*.md' '*.toml' '*.yml' '*.proto' '*.html' '*.js' '*.py' | xargs $(GO) run github.com/golangci/misspell/cmd/misspell@$(MISSPELL) -error
	$(EACH) '$(MODULES)' $(TOOLS)/golangci-lint-$(GOLANGCI) run --config $(CURDIR)/.golangci.yml ./...

$(TOOLS)/golangci-lint-$(GOLANGCI):
	GOFLAGS=-trimpath GOBIN=$(TOOLS) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI)
	mv $(TOOLS)/golangci-lint $@

fuzz: ## run every fuzz target for FUZZTIME (30s)
	@set -e; for package in $$(git grep -l '^func Fuzz' -- '*_test.go' | xargs dirname | sort -u); do cd $(CURDIR)/$$package; \
	  for target in $$($(GO) test -list '^Fuzz' . | grep '^Fuzz'); do \
	    echo "=== $$package $$target"; $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s .; \
	  done; done

proto: ## regenerate the protobuf code (needs protoc)
	$(GO) generate ./api ./tx ./app

kernels: ## regenerate the assembly of sha256mb (avo is a dependency of _gen/avo.mod, not of the node's go.mod)
	$(GO) generate ./avlstar/sha256mb

vectors: ## regenerate our own test vectors; a change of a frozen format shows up in git diff
	$(GO) test ./avlstar ./tx ./app ./app/evm -run Vectors -update
	cd cosmos && $(GO) test ./iavlsync -run Vectors -update

# Figures that count bytes, chunks or hits: other processes on the machine do not change them.
FIGURES ?= avlstar/space,join/moving,chainkv/cache,chainkv/observation2,rainblock/fig3

pictures: ## measure figures of the papers, and put their pictures into docs/papers: FIGURES=avlstar/fig7
	cd bench && $(GO) run . papers --only $(FIGURES) --out ../build/papers
	mkdir -p docs/papers
	cp build/papers/*.svg docs/papers/

# The programs that make docs compiles, once.
DOCS_TOOLS = $(TOOLS)/hugo-$(HUGO) $(TOOLS)/d2-$(D2)

docs: ## build the documents as a site with search into build/docs (open index.html), check links and diagrams, and test it in Chromium
	@if ls $(DOCS_TOOLS) >/dev/null 2>&1 || $(MAKE) --no-print-directory $(DOCS_TOOLS); then \
	  $(MAKE) --no-print-directory site; \
	else echo 'NOT RUN: the site of the documents (Hugo and d2 cannot be downloaded or compiled)'; fi

site: $(DOCS_TOOLS)
	$(TOOLS)/hugo-$(HUGO) --source site --destination $(CURDIR)/build/docs --cleanDestinationDir --panicOnWarning
	@rm -rf build/diagrams && mkdir -p build/diagrams
	@$(call draw_diagrams,build/diagrams)
	@for f in docs/diagrams/*.svg build/diagrams/*.svg; do n=$${f##*/}; cmp docs/diagrams/$$n build/diagrams/$$n || \
	  { echo "run 'make diagrams', remove an SVG without a .d2 file, and commit the result"; exit 1; }; done
	STARLING_SITE=$(CURDIR)/build/docs $(GO) test -vet=off -count=1 -timeout 20m -v -run '^TestSite$$' ./e2e/browser

$(TOOLS)/hugo-$(HUGO):
	@echo 'compiling Hugo: three minutes on two cores'
	GOFLAGS=-trimpath GOBIN=$(TOOLS) $(GO) install github.com/gohugoio/hugo@$(HUGO)
	mv $(TOOLS)/hugo $@

$(TOOLS)/d2-$(D2):
	@echo 'compiling d2: a minute on two cores'
	GOFLAGS=-trimpath GOBIN=$(TOOLS) $(GO) install oss.terrastruct.com/d2@$(D2)
	mv $(TOOLS)/d2 $@

# $(call draw_diagrams,FOLDER) draws docs/diagrams/*.d2 as SVG. With a scale, a picture has a size of its own, and does not fill a page.
draw_diagrams = for f in docs/diagrams/*.d2; do name=$$(basename $$f .d2); \
	$(TOOLS)/d2-$(D2) --theme 0 --dark-theme 200 --pad 10 --scale 0.8 $$f $(1)/$$name.svg && chmod 644 $(1)/$$name.svg || exit 1; done

diagrams: $(TOOLS)/d2-$(D2) ## draw docs/diagrams/*.d2 and the figures of docs/runs as SVG, for light and dark pages
	@$(call draw_diagrams,docs/diagrams)
	cd bench && $(GO) run . draw

screenshots: ## the pictures of the status page in docs, from a join in its test (needs Chromium)
	STARLING_STATUS_PICTURES=$(CURDIR)/docs $(GO) test -vet=off -count=1 -v -run '^TestStatusPage$$' ./e2e

clean: ## remove all build outputs
	rm -rf build .tools
