package e2e_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/history"
	"github.com/starling-kv/starling/e2e/manifest"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/e2e/testnet"
)

// Variables choose which networks run; `make e2e-network`, `make e2e-docker` and `make e2e-random`
// set them.
const (
	// names of e2e/networks/*.toml, comma-separated, each optionally with a kind of network whose
	// settings the nodes get (byzantine@lan); default: ci,byzantine,sharded,lan,programs
	networksVariable = "STARLING_E2E_NETWORKS"
	providerVariable = "STARLING_E2E_PROVIDER" // process or docker; default: see providerOf
	seedsVariable    = "STARLING_E2E_SEEDS"    // number of generated networks
	firstVariable    = "STARLING_E2E_FIRST"    // the first one's seed; default: 1
	// folder for all files of the networks; default: one that is removed after a success
	keepVariable = "STARLING_E2E_KEEP"
)

func TestNetworks(t *testing.T) {
	manifests, err := chosen()
	if err != nil {
		t.Fatal(err)
	}
	provider := os.Getenv(providerVariable)
	if provider != "" && provider != "process" && provider != "docker" {
		t.Fatalf("%s=%s: it is neither process nor docker", providerVariable, provider)
	}
	noDocker := dockerAnswers(t.Context())
	if provider == "docker" && noDocker != nil {
		t.Skipf("NOT RUN: networks of containers: %v", noDocker)
	}
	for _, m := range manifests {
		describe(m, cmp.Or(provider, providerOf(m, noDocker == nil)))
	}
	RegisterFailHandler(Fail)
	suite, reporter := GinkgoConfiguration()
	suite.Timeout = 24 * time.Hour // each network has a limit of its own
	reporter.Verbose, reporter.NoColor = testing.Verbose(), true
	RunSpecs(t, "networks", suite, reporter)
}

// providerOf returns the provider of a network if the variable names none: byzantine runs as
// containers if Docker is available, and all others run as processes. So each network runs once,
// and each provider is tested.
func providerOf(m *manifest.Manifest, docker bool) string {
	if m.Name == "byzantine" && docker {
		return "docker"
	}
	return "process"
}

// dockerAnswers returns the reason why networks of containers cannot run here, or nil if they can.
func dockerAnswers(ctx context.Context) error {
	unused, err := testnet.NewDocker(ctx, "")
	if err != nil {
		return err
	}
	return unused.Close()
}

// chosen reads or generates the manifests that the variables name.
func chosen() (manifests []*manifest.Manifest, _ error) {
	if text := os.Getenv(seedsVariable); text != "" {
		count, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", seedsVariable, err)
		}
		first, err := strconv.ParseUint(cmp.Or(os.Getenv(firstVariable), "1"), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", firstVariable, err)
		}
		for seed := first; seed < first+count; seed++ {
			manifests = append(manifests, manifest.Generate(seed, testnet.Preview))
		}
		return manifests, nil
	}
	for name := range strings.SplitSeq(cmp.Or(os.Getenv(networksVariable), "ci,byzantine,sharded,lan,programs"), ",") {
		name, kind, has := strings.Cut(name, "@")
		m, err := manifest.Read(filepath.Join("networks", name+".toml"))
		if err == nil && has {
			err = m.On(manifest.Network(kind))
		}
		if err != nil {
			return nil, err
		}
		manifests = append(manifests, m)
	}
	return manifests, nil
}

// describe declares the requirements on a network, in the order in which they are tested.
func describe(m *manifest.Manifest, provider string) {
	Describe(m.Name+" ("+provider+")", Ordered, func() {
		w := &world{m: m}
		var ctx context.Context

		BeforeAll(func() {
			GinkgoWriter.Printf("%s: %s\n", m.Name, m.Description)
			w.setUp(provider)
			var cancel context.CancelFunc
			limit := slower * time.Duration(m.Limit)
			ctx, cancel = context.WithTimeoutCause(w.network.Context(), limit, fmt.Errorf("not done within %v", limit))
			DeferCleanup(cancel)
		})
		AfterAll(func() { w.end() })
		BeforeEach(func() { w.began = time.Now() })
		AfterEach(func() {
			w.log("%s: %.1f s", CurrentSpecReport().LeafNodeText, time.Since(w.began).Seconds())
			if CurrentSpecReport().Failed() {
				w.failed = true
			}
		})

		It("makes blocks", func() { Expect(w.network.Start(ctx)).To(Succeed()) })
		It("takes the first keys", func() { Expect(w.network.Load(ctx)).To(Succeed()) })
		It("serves clients", func() { w.startClients(ctx) })
		It("is joined by nodes that follow the chain", func() {
			Expect(w.network.StartLate(ctx)).To(Succeed())
			w.addClients()
		})
		for i, step := range m.Steps {
			It(fmt.Sprintf("survives step %d: %v", i+1, step), func() { w.perturb(ctx, step) })
		}
		It("makes blocks on every honest node", func() { Expect(w.network.Follow(ctx)).To(Succeed()) })
		It("executes calls of programs, and bounds hostile ones", func() { w.checkCalls(ctx) })
		It("has lost no transaction that was acknowledged", func() { w.checkAcknowledged(ctx) })
		It("is linearizable", func() { w.checkHistory(ctx) })
		It("agrees on the app hash at every height", func() { w.checkAppHashes(ctx) })
		It("has banned no honest node", func() { w.checkBans() })
		It("names the storage nodes that sent false answers", func() { w.checkNamed() })
		It("is exported to a file while it runs", func() { w.checkExport(ctx) })
		It("proves keys and their absence to a light client", func() { w.checkLightClient(ctx) })
		It("shows the evidence of double votes", func() { w.checkEvidence(ctx) })
	})
}

// world is one network and the test's state about it.
type world struct {
	m       *manifest.Manifest
	network *testnet.Network
	dir     string
	clients *history.Run
	history *history.History
	calls   *programLoad // nil: the app version has no programs
	began   time.Time    // of the spec
	failed  bool
	docker  bool // the nodes are in containers
}

func (w *world) log(format string, args ...any) {
	GinkgoWriter.Printf("%s %s: %s\n", time.Now().UTC().Format("15:04:05.0"), w.m.Name, fmt.Sprintf(format, args...))
}

func (w *world) setUp(name string) {
	base := os.Getenv(keepVariable)
	var err error
	if base == "" {
		w.dir, err = os.MkdirTemp("", "starling-e2e-"+w.m.Name+"-")
	} else {
		w.dir, err = filepath.Abs(filepath.Join(base, w.m.Name))
	}
	Expect(err).NotTo(HaveOccurred())
	programs := testnet.Programs{Starlingd: starlingd, Byzantine: byzantine, Relay: relay}
	var provider testnet.Provider = testnet.NewProcesses(context.Background(), programs.Relay)
	if w.docker = name == "docker"; w.docker {
		provider, err = testnet.NewDocker(context.Background(), programs.Relay)
		Expect(err).NotTo(HaveOccurred())
	}
	w.network, err = testnet.Setup(provider.Context(), testnet.Options{
		Manifest: w.m, Provider: provider, Programs: programs, Dir: w.dir, Log: w.log,
	})
	Expect(err).NotTo(HaveOccurred())
}

// end stops the network, and shows and keeps its logs after a failure.
func (w *world) end() {
	if w.clients != nil {
		w.clients.Stop()
	}
	if w.calls != nil {
		w.calls.stop()
	}
	if w.network == nil {
		return
	}
	err := w.network.Close()
	if w.failed {
		for _, node := range w.network.Nodes() {
			GinkgoWriter.Printf("--- %s: the last lines of %s\n", node.Name, node.Home.Log())
			for _, line := range runner.Tail(node.Home.Log(), 12) {
				GinkgoWriter.Printf("    %s\n", line)
			}
		}
		GinkgoWriter.Printf("Everything is kept in %q; to check its history again: go test -count=1 -v ./e2e/history -run '^TestAgain$' -again %q\n",
			w.dir, filepath.Join(w.dir, "history.json"))
		return
	}
	Expect(err).NotTo(HaveOccurred())
	if os.Getenv(keepVariable) == "" {
		Expect(os.RemoveAll(w.dir)).To(Succeed())
	}
}

// honest returns the nodes that the checks apply to, those of genesis first.
func (w *world) honest() (nodes []*testnet.Node) {
	for _, node := range w.network.Nodes() {
		if !node.Lies() && !node.Stores() {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// startClients starts the load, through the honest nodes that run from genesis.
func (w *world) startClients(ctx context.Context) {
	if w.m.Load.Clients == 0 {
		return
	}
	var nodes []string
	for _, node := range w.honest() {
		if node.StartAt == 0 {
			nodes = append(nodes, node.Home.RPC())
		}
	}
	var err error
	w.clients, err = history.Start(ctx, history.Config{
		Nodes: nodes, ChainID: w.network.ChainID(), Prefix: testnet.Prefix + "history/", Seed: w.m.Seed,
		Clients: w.m.Load.Clients, Keys: w.m.Load.Keys, Trust: &client.Trust{Genesis: w.network.Genesis},
	})
	Expect(err).NotTo(HaveOccurred())
}

// addClients lets the load use nodes that have joined.
func (w *world) addClients() {
	if w.clients == nil {
		return
	}
	for _, node := range w.network.Running() {
		if node.StartAt > 0 && !node.Lies() {
			w.clients.AddNode(node.Home.RPC())
		}
	}
}

// perturb executes a step. All nodes count as disturbed meanwhile, since a chain without enough
// validators waits.
func (w *world) perturb(ctx context.Context, step manifest.Step) {
	if w.clients != nil {
		defer w.clients.Disturb("")()
	}
	Expect(w.network.Perturb(ctx, step)).To(Succeed())
	if step.Do == manifest.UpgradeApp && w.clients != nil {
		w.clients.SetCounters(counters)
		w.startCalls(ctx)
	}
}
