package lint

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/starling-kv/starling"

// arrows is the allowed import graph: the packages of this module that a package may import, and
// why no others.
var arrows = map[string]struct {
	may []string
	why string
}{
	"tx":               {[]string{"internal/protowalk"}, "transactions are a format: other programs must be able to use it alone"},
	"avlstar":          {[]string{"avlstar/hugemem", "avlstar/record", "avlstar/sha256mb"}, "the tree is a library of its own, without chain, disk or network"},
	"avlstar/hugemem":  {nil, "it lends memory for any content"},
	"avlstar/record":   {nil, "it is a format shared by tree and stores, so it must depend on neither"},
	"avlstar/sha256mb": {nil, "it hashes arbitrary bytes"},
	"storage":          {[]string{"avlstar/record", "storage/internal/engine", "internal/rowtable"}, "stores hold bytes; treestore interprets them"},
	"storage/blocks": {[]string{"storage/internal/engine", "storage/seglog", "storage/sgc"},
		"the block store implements CometBFT's databases for any content"},
	"storage/blocks/conformance": {nil, "it holds only tests, those of cometbft-db"},
	"storage/events": {[]string{"app/event", "storage/internal/engine"},
		"the log keeps events of any origin"},
	"storage/sgc":             {nil, "a cache keeps arbitrary values"},
	"storage/sgc/sgctest":     {nil, "it is for the tests and benchmarks of any cache, also those inside storage/sgc"},
	"storage/internal/engine": {nil, "it opens databases with any content"},
	"storage/seglog": {[]string{"storage/internal/engine"},
		"it keeps arbitrary values; from the engine it needs only the file suffix"},
	"api": {nil, "the messages of the gRPC endpoint are a format, for node and clients"},
	"node/grpcserver": {[]string{"api", "app", "app/event", "app/result", "tx"},
		"it answers strangers through an interface: with access to the node, they could stop it"},
	"app/program":             {[]string{"tx"}, "the application and engines of programs share it, so it must depend on neither"},
	"app/program/programtest": {nil, "it is for the tests of any package"},
	"app/evm/abi":             {nil, "it encodes calls for any user"},
	"app/evm":                 {[]string{"app/program"}, "it imports go-ethereum: the application reaches it through an interface"},
	"app":                     {[]string{"tx", "avlstar", "app/event", "app/program", "app/result"}, "the state machine reaches disk and snapshots through its own interfaces"},
	"storage/pages": {[]string{"avlstar", "avlstar/record", "storage", "storage/sgc"},
		"it reads trees for storage nodes too, which must not depend on a validator's code"},
	"storage/rangestore": {[]string{"avlstar", "avlstar/record", "storage", "storage/pages", "storage/sgc"},
		"a storage node uses it, which must not depend on a validator's code"},
	"storage/treestore": {[]string{"app", "avlstar", "avlstar/record", "statesync", "storage", "storage/pages", "storage/sgc"},
		"it joins tree and stores; statesync and node decide what to fetch and what to trust"},
	"statesync":           {[]string{"avlstar", "avlstar/record", "statesync/scheduler"}, "restoring reaches disk and app through its own interface"},
	"statesync/scheduler": {nil, "it is pure: no clock and no network"},
	"statesync/fetch": {[]string{"internal/bounded", "internal/mailbox", "statesync/scheduler", "transport"},
		"one shell fetches snapshots and IAVL stores: a dependency on either would require a copy for the other"},
	"statesync/protocol": {[]string{"internal/wire", "statesync", "statesync/scheduler", "transport"},
		"it only encodes and decodes messages; if it acted on them, Byzantine peers in tests could not use it"},
	"statesync/serve": {[]string{"avlstar", "statesync", "statesync/protocol", "transport"},
		"it answers untrusted peers: with access to block execution, they could make the node wait"},
	"statesync/peers": {[]string{"internal/bounded", "statesync", "statesync/protocol", "transport"},
		"it ranks peers by what they send, for any purpose, so that catch-up and sharding can use it"},
	"statesync/snapshot": {[]string{"avlstar", "internal/hedge", "statesync", "statesync/peers", "statesync/protocol", "statesync/scheduler", "transport"},
		"it chooses before anything is opened: with access to the disk, a Byzantine peer could make the node discard its state"},
	"statesync/restore": {[]string{"avlstar", "statesync", "statesync/fetch", "statesync/peers", "statesync/protocol", "statesync/scheduler", "statesync/snapshot", "statesync/view", "transport"},
		"it reaches the disk through statesync and headers through an interface, so that tests can run it in virtual time"},
	"statesync/view": {[]string{"statesync/peers", "statesync/scheduler"},
		"the status page reads it while a join writes it: it must not be able to slow the join down"},
	"statesync/statetest": {[]string{"avlstar"}, "it is for the tests of any package"},
	"statesync/archive":   {[]string{"avlstar"}, "a file holds chunks of any origin"},
	"app/result":          {nil, "the format of a query, for the application and its clients"},
	"app/event": {nil,
		"events are a format shared by nodes and clients, so it must depend on neither"},
	"internal/hedge":        {nil, "it decides which candidates to ask in parallel, for any question"},
	"internal/child":        {nil, "modules that cannot import each other share it, so it must not need a particular version of a library"},
	"statesync/lightclient": {nil, "it verifies blocks for any caller"},
	"statesync/lightblocks": {[]string{"internal/hedge", "internal/protowalk", "statesync/lightclient", "transport"}, "it proves CometBFT's headers for any user"},
	"statesync/catchup": {[]string{"internal/bounded", "internal/hedge", "statesync/lightblocks", "statesync/lightclient", "transport"},
		"blocks are CometBFT's; it executes them through its own interface"},
	"transport":     {nil, "it carries messages and chunks with any content"},
	"transport/tcp": {[]string{"transport"}, "an implementation depends only on its interface"},
	"transport/rdma": {[]string{"transport", "transport/rdma/internal/verbs", "transport/tcp"},
		"it is a channel of tcp's connections; requesters verify what it carries"},
	"transport/rdma/rdmatest": {[]string{"transport/rdma", "transport/rdma/internal/verbs/verbstest"},
		"it is for the tests of any package"},
	"transport/rdma/internal/verbs": {nil, "it moves arbitrary bytes between devices"},
	"transport/rdma/internal/verbs/verbstest": {[]string{"transport/rdma/internal/verbs"},
		"it is a conformance suite for devices, with an in-memory fabric"},
	"transport/transporttest": {[]string{"transport", "internal/seeds"}, "it is the conformance suite of every implementation"},
	"dsm":                     {[]string{"avlstar"}, "both sides and benchmarks use these messages: a connection or a clock would be needed to test them"},
	"dsm/client/ask": {[]string{"avlstar", "dsm", "internal/hedge"},
		"with a clock, a network or a tree, simulations could not reproduce its decisions"},
	"dsm/client/feed": {[]string{"avlstar", "dsm"}, "with a clock, a network or a tree, simulations could not reproduce its decisions"},
	"dsm/client": {[]string{"avlstar", "dsm", "dsm/client/ask", "dsm/client/feed", "transport"},
		"with the application, blocks could not be executed with other sources of witnesses"},
	"dsm/server": {[]string{"avlstar", "avlstar/record", "dsm", "dsm/server/witness", "storage", "storage/rangestore", "storage/seglog", "transport"},
		"a storage node must not depend on a validator's code: it reaches proved headers through its own interface"},
	"dsm/server/witness": {[]string{"avlstar", "dsm", "transport"},
		"validators serve with it too: a range or a log would make them depend on a storage node"},
	"node/health":     {nil, "it judges facts from any source"},
	"node/registry":   {nil, "it keeps metrics of any package"},
	"node/statuspage": {nil, "it reaches the node through its own interface"},
	"client":          {[]string{"api", "tx", "avlstar", "app/event", "app/result", "internal/hedge", "statesync/lightclient"}, "a client must not link a node"},
	"node": {[]string{"node/relay", "app", "app/evm", "avlstar", "statesync/catchup", "storage", "app/event", "storage/blocks", "storage/events", "storage/sgc", "statesync", "statesync/peers", "statesync/protocol", "statesync/restore", "statesync/serve", "statesync/snapshot", "statesync/view",
		"storage/treestore", "statesync/lightblocks", "transport", "transport/tcp", "node/grpcserver", "node/health", "node/statuspage", "dsm", "dsm/client", "dsm/client/ask", "dsm/client/feed", "dsm/server", "dsm/server/witness",
		"node/budget", "node/buildinfo", "node/comet", "node/config", "node/disk", "node/fabric", "node/join", "node/rangemap", "node/registry", "node/signer"}, "the process wires the parts together"},
	"node/join": {[]string{"app", "avlstar", "statesync/catchup", "statesync/lightblocks", "node/buildinfo", "node/comet", "node/config", "statesync", "statesync/peers", "statesync/protocol", "statesync/restore", "statesync/snapshot", "statesync/view",
		"storage", "transport", "transport/tcp"}, "a join reaches the node's state and CometBFT's databases through its own interfaces"},
	"node/storagenode": {[]string{"app", "avlstar", "avlstar/record", "dsm", "dsm/server", "dsm/server/witness", "storage", "storage/rangestore", "node/health", "statesync/archive", "statesync/lightblocks", "statesync/lightclient", "node/budget", "node/buildinfo", "node/config",
		"node/disk", "node/fabric", "node/join", "node/rangemap", "node/registry", "statesync", "statesync/peers", "statesync/protocol", "statesync/scheduler", "statesync/serve", "internal/hedge", "internal/durable", "internal/durable/onvfs", "node/statuspage", "transport", "transport/tcp"}, "a storage node that linked the validator process would open consensus and its keys"},
	"node/rangemap": {[]string{"avlstar", "dsm", "node/config", "transport"}, "validators and storage nodes use it, and the operator's commands"},
	"node/comet": {[]string{"statesync/catchup", "statesync/lightblocks", "node/config", "node/disk", "node/signer", "storage", "storage/blocks", "transport"},
		"it adapts CometBFT to a node with any application; from storage it needs only errors"},
	"node/config": {[]string{"app", "avlstar", "dsm", "tx", "statesync/lightclient", "node/signer", "node/statuspage", "transport"},
		"settings are read and checked before anything is opened; from other packages it needs limits and address formats"},
	"node/budget": {[]string{"node/config"}, "it sums numbers: the packages that hold the bytes limit them"},
	"node/fabric": {[]string{"node/config", "node/statuspage", "transport", "transport/rdma", "transport/tcp"},
		"it creates channels for connections with any content"},
	"node/signer":    {nil, "it signs, and keeps its own file: nothing else can change a signature"},
	"node/disk":      {[]string{"storage"}, "it measures free space; all packages share the state store's error for a full disk"},
	"node/buildinfo": {[]string{"app", "app/evm", "statesync", "storage", "storage/blocks"}, "it reports versions and formats of built-in packages, and runs nothing"},
	"node/home": {[]string{"app", "avlstar", "statesync/lightblocks", "node/buildinfo", "node/comet", "node/config", "node/disk", "node/join",
		"statesync", "statesync/archive", "statesync/protocol", "storage", "storage/blocks", "storage/pages", "storage/sgc", "transport", "transport/tcp", "storage/treestore"},
		"it works on the home of a stopped node"},
	"node/internal/nodetest": {[]string{"app", "avlstar", "node/budget", "node/config", "node/home", "internal/ports"}, "helpers of tests, beneath the node, so that the node's own tests can use them"},
	"cmd/starlingd":          {[]string{"cmd/starlingd/cli"}, "the command line is a package, so that localnet needs no second build"},
	"cmd/starlingd/cli": {[]string{"statesync/catchup", "node", "node/buildinfo", "node/comet", "node/config", "node/disk", "node/fabric", "node/home", "node/join", "node/rangemap", "node/storagenode", "dsm", "transport", "client", "tx", "app", "app/evm", "app/evm/abi", "app/program", "node/health",
		"node/statuspage"},
		"commands are thin wrappers of node, its subpackages, and client"},
	"node/relay": {[]string{"transport", "internal/protowalk"},
		"it wraps CometBFT's consensus reactor, over any transport and for any block content"},
	"examples/seats": {[]string{"client", "tx"}, "it shows what a program outside this repository needs"},
	"cmd/localnet": {[]string{"avlstar", "client", "cmd/starlingd/cli", "e2e/byzantine/liar", "e2e/byzantine/peer", "e2e/manifest", "e2e/runner", "e2e/testnet"},
		"the demonstration drives processes from outside, as any user could; two of these packages are those processes"},
	"e2e":                 {nil, "end-to-end tests are black-box"},
	"internal/lint":       {nil, "it holds only tests"},
	"internal/bounded":    {nil, "it keeps arbitrary values"},
	"internal/mailbox":    {nil, "it passes arbitrary events"},
	"internal/slots":      {nil, "it counts callers of any kind"},
	"internal/wake":       {nil, "it wakes any goroutine"},
	"internal/protowalk":  {nil, "it counts elements of any messages"},
	"internal/rowtable":   {nil, "it writes a file format for any records"},
	"internal/hexruns":    {nil, "it is for the vectors of any package"},
	"internal/bubble":     {nil, "it is for the tests of any package"},
	"internal/upstream":   {nil, "it is for the tests of any package, in any module"},
	"internal/copied":     {nil, "it compares arbitrary text"},
	"internal/crashfs":    {nil, "it is for the tests of any package"},
	"internal/seeds":      {nil, "it is for the tests of any package"},
	"internal/spectest":   {nil, "it is for the tests of any package, in any module"},
	"internal/worlds":     {nil, "it is for the tests of any package"},
	"internal/smalldisk":  {nil, "it mounts disks for any use"},
	"internal/ports":      {nil, "it reserves ports for any server"},
	"e2e/manifest":        {nil, "a manifest is text"},
	"e2e/relay":           {[]string{"e2e/relay/link"}, "it is a command line for the links"},
	"e2e/relay/link":      {nil, "it carries arbitrary bytes"},
	"networks/homes":      {[]string{"e2e/manifest", "e2e/relay/link", "e2e/runner", "e2e/testnet"}, "it creates homes from outside, with the node's own command"},
	"networks/joining":    {[]string{"e2e/runner"}, "it works from outside, with addresses and logs only"},
	"networks/monitoring": {nil, "it works from outside, with metrics only"},
	"e2e/testnet": {[]string{"client", "tx", "app", "e2e/manifest", "e2e/relay/link", "e2e/runner", "internal/ports", "internal/smalldisk"},
		"it drives nodes from outside; from app it needs the format of the genesis file"},
	"e2e/browser":   {nil, "it drives a browser for any page"},
	"e2e/runner":    {[]string{"internal/ports"}, "it starts and watches any processes"},
	"e2e/byzantine": {[]string{"e2e/byzantine/peer"}, "the peer is a package, so that localnet needs no second build"},
	"e2e/byzantine/peer": {[]string{"node", "node/config", "node/storagenode", "e2e/byzantine/attack", "e2e/byzantine/liar", "e2e/byzantine/voter", "e2e/runner"},
		"a Byzantine peer is a node with some parts replaced by misbehaving ones"},
	"e2e/guest":          {nil, "end-to-end tests are black-box"},
	"e2e/history":        {[]string{"client", "tx"}, "a history is what clients saw; the blocks are executed again, independently of the code under test"},
	"e2e/byzantine/liar": {[]string{"transport", "tx"}, "it damages bytes and must not be able to create valid ones; tx has the format of simulations"},
	"e2e/byzantine/attack": {[]string{"tx", "transport", "transport/tcp", "e2e/byzantine/liar"},
		"it attacks from outside, as any peer could"},

	"internal/crc32c":        {nil, "it computes checksums of arbitrary bytes"},
	"internal/durable":       {nil, "it writes files with any content"},
	"internal/durable/onvfs": {nil, "it writes files with any content"},
	"internal/wire":          {nil, "it reads arbitrary messages"},
	"internal/backoff":       {nil, "it computes without a clock, so that simulations can use it"},
	"internal/sleep":         {nil, "it waits for any caller"},
	"internal/heap":          {nil, "it orders arbitrary values"},
	"internal/keyspace":      {nil, "it computes with the keys of any store"},

	"e2e/byzantine/voter": {[]string{"transport", "e2e/byzantine/liar"}, "it signs; the node around it is honest"},
}

// helpers may be imported by every package: they import no other package of this module.
var helpers = []string{"internal/backoff", "internal/crc32c", "internal/durable", "internal/durable/onvfs", "internal/heap", "internal/keyspace", "internal/protowalk", "internal/sleep", "internal/slots", "internal/wake", "internal/wire"}

type goPackage struct {
	ImportPath string
	Imports    []string
	Deps       []string
	Doc        string
	GoFiles    []string
}

func listPackages(t *testing.T, args ...string) []goPackage {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports,Deps,Doc,GoFiles"}, args...)...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("go list: %v\n%s", err, exit.Stderr)
	}
	require.NoError(t, err)
	var packages []goPackage
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

func ours(path string) (string, bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

func TestImportsGoOneWay(t *testing.T) {
	for _, p := range listPackages(t, "./...") {
		name, _ := ours(p.ImportPath)
		rule, known := arrows[name]
		if !known {
			t.Errorf("package %s is not in the import graph: add it to arrows in imports_test.go with its allowed imports", name)
			continue
		}
		for _, path := range p.Imports {
			if imported, is := ours(path); is && !slices.Contains(rule.may, imported) && !slices.Contains(helpers, imported) {
				t.Errorf("%s imports %s, but may only import %v: %s", name, imported, rule.may, rule.why)
			}
		}
	}
}

// Packages that must never be linked into the node or into a library, even indirectly.
func TestForbiddenDependencies(t *testing.T) {
	forbidden := []struct{ from, to, why string }{
		{"cmd/starlingd", module + "/e2e", "Byzantine peers are never part of the node"},
		{"cmd/starlingd", "github.com/cosmos/iavl", "the oracle and the systems that we compare with have their own modules"},
		{"cmd/starlingd", "github.com/mmcloughlin/avo", "the assembly generator has its own go.mod"},
		{"cmd/starlingd", "github.com/chromedp", "only tests drive a browser"},
		{"avlstar", "github.com/cometbft/cometbft", "the tree does not depend on the chain"},
		{"storage", "github.com/cometbft/cometbft", "the state store does not depend on the chain"},
		{"storage/blocks", "github.com/cometbft/cometbft", "the block store depends only on cometbft-db's interface"},
		{"tx", "github.com/cometbft/cometbft/node", "a format must not link a node"},
		{"client", "github.com/cometbft/cometbft/node", "a client must not link a node"},
		{"client", "github.com/cockroachdb/pebble", "a client has no database"},
		{"statesync/lightclient", "github.com/cometbft/cometbft/node", "the verification is pure"},
		{"statesync/lightclient", "github.com/cockroachdb/pebble", "the verification is pure"},
		{"transport", "github.com/cometbft/cometbft", "a transport does not depend on the chain"},
		{"statesync/scheduler", "github.com/cometbft/cometbft", "the scheduler is pure"},
		{"dsm", "github.com/cometbft/cometbft", "messages of a sharded state do not depend on the chain"},
		{"dsm/client/ask", "github.com/cometbft/cometbft", "pure code decides which nodes to ask"},
		{"dsm/client/feed", "github.com/cometbft/cometbft", "pure code decides which nodes to send to"},
		{"app", "github.com/ethereum/go-ethereum", "the application reaches the engine of programs through an interface"},
		{"client", "github.com/ethereum/go-ethereum", "a client must not link an engine of programs"},
	}
	for _, f := range forbidden {
		for _, p := range listPackages(t, "./"+f.from) {
			for _, dep := range p.Deps {
				if dep == f.to || strings.HasPrefix(dep, f.to+"/") {
					t.Errorf("%s depends on %s: %s", f.from, dep, f.why)
				}
			}
		}
	}
}

// go-ethereum's interfaces change with each version, and a build with the tag noevm must not link
// it.
func TestOnlyTheEngineImportsGoEthereum(t *testing.T) {
	for _, p := range listPackages(t, "./...") {
		name, _ := ours(p.ImportPath)
		for _, path := range p.Imports {
			if strings.HasPrefix(path, "github.com/ethereum/") && name != "app/evm" && name != "app/evm/abi" {
				t.Errorf("%s imports %s: only app/evm and app/evm/abi may", name, path)
			}
		}
	}
	for _, p := range listPackages(t, "-tags", "noevm", "./app/evm") {
		for _, dep := range p.Deps {
			if strings.HasPrefix(dep, "github.com/ethereum/") {
				t.Errorf("with the tag noevm, %s depends on %s", p.ImportPath, dep)
			}
		}
	}
}

// Modules that the node's go.mod must not require: the versions selected for them and their
// dependencies would apply to everyone who builds the node.
func TestForbiddenModules(t *testing.T) {
	b, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	for path, home := range map[string]string{
		"github.com/cosmos/iavl": "cosmos/oracle and cosmos/sdk", "cosmossdk.io/": "cosmos and cosmos/sdk", "github.com/cosmos/cosmos-sdk": "cosmos/sdk",
		"github.com/cosmos/cosmos-db": "cosmos", "github.com/mmcloughlin/avo": "avlstar/sha256mb/_gen/avo.mod", "go.etcd.io/etcd": "bench",
	} {
		if strings.Contains(string(b), path) {
			t.Errorf("go.mod requires %s, which belongs to %s", path, home)
		}
	}
}

func TestEveryPackageHasASentence(t *testing.T) {
	for _, p := range listPackages(t, "./...") {
		if len(p.GoFiles) > 0 && !strings.HasSuffix(strings.TrimSpace(p.Doc), ".") {
			t.Errorf("%s: a package comment starts with a sentence that says what the package is; got %q", p.ImportPath, p.Doc)
		}
	}
}
