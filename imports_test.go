package starling

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/starling-kv/starling"

// arrows is the import graph that is allowed: what a package may import of ours, and why no more.
var arrows = map[string]struct {
	may []string
	why string
}{
	".":                {nil, "it only holds tests"},
	"tx":               {[]string{"internal/protowalk"}, "transactions are a format: other programs must be able to use it alone"},
	"avlstar":          {[]string{"avlstar/hugemem", "avlstar/record", "avlstar/sha256mb"}, "the tree is a library of its own, without chain, disk or network"},
	"avlstar/hugemem":  {nil, "it lends memory, whatever is put there"},
	"avlstar/record":   {nil, "it is a format: tree and zones share it, so it may know neither"},
	"avlstar/sha256mb": {nil, "it hashes bytes, whatever they are"},
	"storage":          {[]string{"avlstar/record", "storage/internal/engine", "internal/rowtable"}, "zones store bytes; what they mean is the business of treestore"},
	"storage/blocks": {[]string{"storage/internal/engine", "storage/internal/segments", "storage/sgc"},
		"the block zone is CometBFT's databases, whatever is in them"},
	"storage/events": {[]string{"event", "storage/internal/engine"},
		"the log keeps events, whatever has caused them"},
	"storage/undo":            {[]string{"storage/internal/engine"}, "it keeps records, whatever is in them"},
	"storage/sgc":             {nil, "a cache keeps values, whatever they are"},
	"storage/internal/engine": {nil, "it opens databases, whatever is in them"},
	"storage/internal/segments": {[]string{"storage/internal/engine"},
		"it keeps values, whatever they are; of the engine it has how the names in a folder become durable"},
	"app": {[]string{"tx", "avlstar", "event"}, "the state machine reaches disk and snapshots through its own interfaces"},
	"treestore": {[]string{"app", "avlstar", "avlstar/record", "statesync", "storage", "storage/sgc"},
		"it joins tree and zones; what is fetched, and whom to trust, is the business of statesync and node"},
	"statesync":           {[]string{"avlstar", "avlstar/record"}, "restoring reaches disk and app through its own interface"},
	"statesync/scheduler": {nil, "it decides, and knows neither clock nor network"},
	"statesync/fastsync":  {[]string{"avlstar", "hedge", "internal/mailbox", "statesync", "statesync/scheduler", "transport"}, "joining reaches disk and app through statesync, and headers through its own interface"},
	"statesync/archive":   {[]string{"avlstar"}, "a file holds chunks, wherever they come from or go to"},
	"event": {nil,
		"what watchers are told is a format: nodes and clients share it, so it may know neither"},
	"hedge":       {nil, "it decides whom to ask beside whom, whatever the question"},
	"lightclient": {nil, "it judges blocks, whoever asks for them and whatever the verdict leads to"},
	"lightblocks": {[]string{"hedge", "internal/protowalk", "lightclient", "transport"}, "headers are CometBFT's; who uses them is the business of node"},
	"catchup": {[]string{"hedge", "lightblocks", "lightclient", "transport"},
		"blocks are CometBFT's; who executes them reaches it through its own interface"},
	"transport":     {nil, "messages and chunks between nodes, whatever is in them"},
	"transport/tcp": {[]string{"transport"}, "an implementation knows its interface only"},
	"transport/rdma": {[]string{"transport", "transport/rdma/internal/verbs", "transport/tcp"},
		"a path of connections that tcp has made; what goes over it is judged by whoever asked"},
	"transport/rdma/rdmatest": {[]string{"transport/rdma", "transport/rdma/internal/verbs/verbstest"},
		"it is for the tests of any package"},
	"transport/rdma/internal/verbs": {nil, "it moves bytes between devices, whatever they are"},
	"transport/rdma/internal/verbs/verbstest": {[]string{"transport/rdma/internal/verbs"},
		"one suite for devices, and a fabric of them in memory"},
	"transport/transporttest":  {[]string{"transport"}, "one suite for every implementation"},
	"dsm":                      {nil, "messages and ranges of a sharded state, whatever the tree and the network are"},
	"dsm/ask":                  {[]string{"dsm", "hedge"}, "it decides whom to ask, and knows neither clock nor network nor tree"},
	"dsm/feed":                 {[]string{"dsm"}, "it decides whom to send to, and knows neither clock nor network nor tree"},
	"dsm/serve":                {[]string{"avlstar", "dsm", "transport"}, "it answers from states, whoever keeps them, and knows no connections"},
	"dsm/source":               {[]string{"avlstar", "dsm", "dsm/ask", "dsm/feed", "transport"}, "it connects the tree to storage nodes; who executes blocks on it is no business of its own"},
	"dsm/storagenode":          {[]string{"avlstar", "avlstar/record", "dsm", "dsm/serve", "transport"}, "it reaches proved headers through its own interface, and starts nothing"},
	"dsm/storagenode/disktest": {[]string{"avlstar", "dsm/storagenode", "internal/seeds"}, "one suite for every implementation"},
	"health":                   {nil, "it judges facts, whoever collects them"},
	"statuspage":               {nil, "it shows what it is given, and reaches the node through its own interface"},
	"client":                   {[]string{"tx", "avlstar", "event", "hedge", "lightclient"}, "a client must not link a node"},
	"node": {[]string{"node/relay", "app", "avlstar", "catchup", "storage", "event", "storage/blocks", "storage/events", "storage/sgc", "storage/undo", "statesync", "statesync/fastsync",
		"treestore", "lightblocks", "transport", "transport/tcp", "health", "statuspage", "dsm", "dsm/ask", "dsm/feed", "dsm/serve", "dsm/source", "dsm/storagenode",
		"node/buildinfo", "node/comet", "node/config", "node/disk", "node/fabric", "node/join"}, "the process wires the parts together"},
	"node/join": {[]string{"app", "avlstar", "catchup", "lightblocks", "node/buildinfo", "node/comet", "node/config", "statesync", "statesync/fastsync",
		"storage", "transport", "transport/tcp"}, "a join reaches the node's state and CometBFT's databases through its own interfaces"},
	"node/shard": {[]string{"app", "avlstar", "dsm", "dsm/storagenode", "health", "lightblocks", "lightclient", "node/buildinfo", "node/config",
		"node/disk", "node/fabric", "node/join", "statesync", "statesync/fastsync", "statuspage", "transport", "transport/tcp"}, "a storage node is another process than a node, and of that it has the rooms only"},
	"node/comet": {[]string{"catchup", "lightblocks", "node/config", "node/disk", "storage", "storage/blocks", "transport"},
		"it adapts CometBFT to a node, whatever the application is; of storage it has the errors"},
	"node/config": {[]string{"app", "dsm", "tx", "lightclient", "statuspage", "transport"},
		"settings are read and checked before anything is opened; of others it has limits and the forms of addresses"},
	"node/fabric": {[]string{"node/config", "statuspage", "transport", "transport/rdma", "transport/tcp"},
		"paths are made for connections, whatever goes over them"},
	"node/disk":      {[]string{"storage"}, "it measures free space, whoever fills it; the state zone's error for a full disk is everybody's"},
	"node/buildinfo": {[]string{"app", "statesync", "storage", "storage/blocks"}, "it names versions and formats of what is built in, and runs nothing"},
	"node/home": {[]string{"app", "avlstar", "lightblocks", "node/buildinfo", "node/comet", "node/config", "node/disk", "node/join",
		"statesync", "statesync/archive", "statesync/fastsync", "storage", "storage/blocks", "storage/sgc", "transport", "transport/tcp", "treestore"},
		"it works on the home of a node that does not run"},
	"node/internal/nodetest": {[]string{"app", "avlstar", "node/config", "node/home", "internal/ports"}, "helpers of tests, beneath the node, so that the node's own tests can use them"},
	"cmd/starlingd": {[]string{"catchup", "node", "node/buildinfo", "node/comet", "node/config", "node/disk", "node/fabric", "node/home", "node/join", "node/shard", "client", "tx", "app", "health",
		"statuspage"},
		"commands are thin over node and its rooms, and client"},
	"node/relay": {[]string{"transport", "internal/protowalk"},
		"it wraps CometBFT's consensus reactor, over any transport, whatever blocks hold"},
	"cmd/localnet":        {[]string{"client", "tx", "app", "avlstar", "e2e/runner", "e2e/byzantine/liar"}, "the demonstration drives processes from outside"},
	"e2e":                 {nil, "end-to-end tests are black-box"},
	"internal/mailbox":    {nil, "it hands events over, whatever they are"},
	"internal/protowalk":  {nil, "it counts what is in messages, whatever they mean"},
	"internal/rowtable":   {nil, "it writes a file format, whatever the records are"},
	"internal/hexruns":    {nil, "it is for the vectors of any package"},
	"internal/bubble":     {nil, "it is for the tests of any package"},
	"internal/seeds":      {nil, "it is for the tests of any package"},
	"internal/worlds":     {nil, "it is for the tests of any package"},
	"internal/ports":      {nil, "it knows numbers, whoever listens there"},
	"e2e/manifest":        {nil, "a manifest is text"},
	"e2e/relay":           {[]string{"e2e/relay/link"}, "it is a command line around the links"},
	"e2e/relay/link":      {nil, "it carries bytes, whatever they are"},
	"networks/homes":      {[]string{"app", "e2e/runner", "e2e/relay/link"}, "it makes homes from outside, by the node's own command"},
	"networks/joining":    {[]string{"e2e/runner"}, "it writes and reads logs as somebody with nothing but addresses would"},
	"networks/monitoring": {nil, "it names metrics, as somebody who has nothing but the node's address would"},
	"e2e/testnet": {[]string{"client", "tx", "app", "e2e/manifest", "e2e/relay/link", "e2e/runner", "internal/ports"},
		"it drives nodes from outside; of app it has the genesis file's shape"},
	"e2e/browser": {nil, "it drives a browser, whatever the page"},
	"e2e/runner":  {[]string{"internal/ports"}, "it starts and watches processes, whatever they are"},
	"e2e/byzantine": {[]string{"node", "node/config", "e2e/byzantine/attack", "e2e/byzantine/liar", "e2e/byzantine/voter"},
		"the liar is a node with what misbehaves in the places of what is honest"},
	"e2e/guest":          {nil, "end-to-end tests are black-box"},
	"e2e/history":        {[]string{"client", "tx"}, "a history is what clients saw; the blocks are executed anew, not by the code under test"},
	"e2e/byzantine/liar": {[]string{"transport"}, "it damages bytes and must not know how to make good ones"},
	"e2e/byzantine/attack": {[]string{"tx", "transport", "transport/tcp", "e2e/byzantine/liar"},
		"it attacks from outside, as anybody could"},
	"e2e/byzantine/voter": {[]string{"transport", "e2e/byzantine/liar"}, "it signs; the node around it is an honest one"},
}

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
			t.Errorf("package %s is not in the import graph: add it to arrows in imports_test.go with what it may import", name)
			continue
		}
		for _, path := range p.Imports {
			if imported, is := ours(path); is && !slices.Contains(rule.may, imported) {
				t.Errorf("%s imports %s, but may only import %v: %s", name, imported, rule.may, rule.why)
			}
		}
	}
}

// What must never be linked into the node or into a library, however indirectly.
func TestForbiddenDependencies(t *testing.T) {
	forbidden := []struct{ from, to, why string }{
		{"cmd/starlingd", module + "/e2e", "lying peers are never part of the node"},
		{"cmd/starlingd", "github.com/cosmos/iavl", "the oracle and the peers we measure against live in modules of their own"},
		{"cmd/starlingd", "github.com/mmcloughlin/avo", "the generator of the assembly is a module of its own"},
		{"cmd/starlingd", "github.com/chromedp", "a browser is driven by tests only"},
		{"avlstar", "github.com/cometbft/cometbft", "the tree does not know the chain"},
		{"storage", "github.com/cometbft/cometbft", "the state zone does not know the chain"},
		{"storage/blocks", "github.com/cometbft/cometbft", "the block zone knows cometbft-db's interface only"},
		{"tx", "github.com/cometbft/cometbft/node", "a format must not link a node"},
		{"client", "github.com/cometbft/cometbft/node", "a client must not link a node"},
		{"client", "github.com/cockroachdb/pebble", "a client has no database"},
		{"lightclient", "github.com/cometbft/cometbft/node", "the verification is pure"},
		{"lightclient", "github.com/cockroachdb/pebble", "the verification is pure"},
		{"transport", "github.com/cometbft/cometbft", "a transport does not know the chain"},
		{"statesync/scheduler", "github.com/cometbft/cometbft", "the scheduler is pure"},
		{"dsm", "github.com/cometbft/cometbft", "messages of a sharded state do not know the chain"},
		{"dsm/ask", "github.com/cometbft/cometbft", "whom to ask is decided by pure code"},
		{"dsm/feed", "github.com/cometbft/cometbft", "whom to send to is decided by pure code"},
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

func TestEveryPackageHasASentence(t *testing.T) {
	for _, p := range listPackages(t, "./...") {
		if len(p.GoFiles) > 0 && !strings.HasSuffix(strings.TrimSpace(p.Doc), ".") {
			t.Errorf("%s: a package opens with a sentence that says what it is; got %q", p.ImportPath, p.Doc)
		}
	}
}
