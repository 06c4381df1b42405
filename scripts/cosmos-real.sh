#!/usr/bin/env bash
# Builds a stock gaiad from public module sources with pinned versions, outside the repository, and runs TestRealChain of
# cosmos/sdk/simd with it. What cannot be fetched is named, and skipped. It needs a C compiler, about 10 minutes of two
# cores for the first build, and 5 GB.
#
#	GAIAD=/path/of/gaiad      do not build, use this program
#	GAIA=/path/of/sources     sources of gaia, if its module cannot be downloaded
#	IBC_APPS=/path/of/sources the same for ibc-apps
#	WORK=/path                where to build (default: the user's cache folder)
set -euo pipefail
version=v28.0.0
gaia=github.com/cosmos/gaia/v28@$version
pfm=github.com/cosmos/ibc-apps/middleware/packet-forward-middleware/v10
pfm_version=v10.6.0
# Its own version does not compile with Go 1.26.
sonic='github.com/bytedance/sonic@v1.15.0 github.com/bytedance/sonic/loader@v0.5.0'
wasmd=github.com/CosmWasm/wasmd@v0.60.8 # with a contract

repository=$(pwd)
work=${WORK:-${XDG_CACHE_HOME:-$HOME/.cache}/starling-cosmos-real}
mkdir -p "$work"
cd "$work" # outside of modules
skip() { echo "NOT RUN: $1"; exit 0; }
# folder MODULE@VERSION prints the folder of a module in the module cache.
folder() { GOFLAGS=-mod=mod go mod download -json "$1" 2>/dev/null | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'; }

if [ -z "${GAIAD:-}" ]; then
	command -v "${CC:-gcc}" >/dev/null || skip "gaiad $version (no C compiler here)"
	sources=${GAIA:-$(folder "$gaia" || true)}
	[ -n "$sources" ] || skip "gaiad $version (module $gaia cannot be downloaded; GAIA=folder names its sources)"
	rm -rf gaia
	cp -r "$sources" gaia
	chmod -R u+w gaia
	cd gaia
	middleware=${IBC_APPS:+$IBC_APPS/middleware/packet-forward-middleware}
	if [ -n "$middleware" ]; then
		go mod edit -replace "$pfm=$middleware"
	else
		[ -n "$(folder "$pfm@$pfm_version" || true)" ] || skip "gaiad $version (module $pfm@$pfm_version cannot be downloaded; IBC_APPS=folder names its sources)"
	fi
	for m in $sonic; do go mod edit -require "$m"; done
	# wasmvm's library stays in the module cache, where the linker has found it.
	export CGO_ENABLED=1 GOFLAGS="-mod=mod -trimpath ${COSMOS_REAL_FLAGS:-}"
	name=github.com/cosmos/cosmos-sdk/version
	echo "building gaiad $version: minutes with an empty build cache"
	go build -tags netgo -ldflags "-X $name.Name=gaia -X $name.AppName=gaiad -X $name.Version=$version" -o ../gaiad ./cmd/gaiad
	GAIAD=$work/gaiad
	cd ..
fi
contract=$(folder "$wasmd" || true)/x/wasm/keeper/testdata/hackatom.wasm
[ -f "$contract" ] || { echo "NOT RUN: contracts (module $wasmd cannot be downloaded)"; contract=; }
cd "$repository/cosmos/sdk"
export CGO_ENABLED=0 GOFLAGS=-trimpath
STARLING_REAL_NODE=$GAIAD STARLING_REAL_CONTRACT=$contract go test -count=1 -v -timeout 30m -run '^TestRealChain$' ./simd
