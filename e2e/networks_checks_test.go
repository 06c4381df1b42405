package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	"github.com/cometbft/cometbft/types"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/byzantine/liar"
	"github.com/starling-kv/starling/e2e/history"
	"github.com/starling-kv/starling/e2e/manifest"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/e2e/testnet"
)

const (
	checkedKeys = 20 // number of present keys, and of absent ones, that each honest node must prove
	// linearLimit limits the search for an order of the operations, which usually takes a second.
	linearLimit = 3 * time.Minute
	headersOnce = 20 // maximum number that CometBFT returns at a time (rpc/core/blocks.go)
)

// checkAcknowledged stops the clients, and checks that every honest node has all transactions that
// were acknowledged to them.
func (w *world) checkAcknowledged(ctx context.Context) {
	if w.clients == nil {
		return
	}
	w.history, w.clients = w.clients.Stop(), nil
	w.log("%s", w.history.Summary())
	Expect(w.history.WriteFile(filepath.Join(w.dir, "history.json"))).To(Succeed())
	Expect(w.history.Acknowledged()).NotTo(BeEmpty())
	// the chain waits for longer than clients do, and a node takes transactions
	waits := func(s manifest.Step) bool {
		return s.Do == manifest.Kill && time.Duration(s.For) > history.DefaultPatience &&
			slices.ContainsFunc(w.honest(), func(n *testnet.Node) bool { return n.StartAt == 0 && !slices.Contains(s.Nodes, n.Name) })
	}
	if slices.ContainsFunc(w.m.Steps, waits) {
		Expect(w.history.Count()[history.Maybe]).NotTo(BeZero(), "the chain waited for longer than the clients do")
	}
	for _, node := range w.honest() {
		kept, err := w.history.CheckAcknowledged(ctx, node.Home.RPC())
		Expect(err).NotTo(HaveOccurred())
		Expect(kept.Held+kept.Earlier).To(Equal(len(w.history.Acknowledged())), node.Name)
		Expect(kept.Held).NotTo(BeZero(), node.Name)
		if node.StartAt == 0 {
			Expect(kept.Earlier).To(BeZero(), "%s was there from the beginning", node.Name)
		}
	}
}

// checkHistory checks the clients' history with three independent checkers.
func (w *world) checkHistory(ctx context.Context) {
	if w.history == nil {
		return
	}
	// a node from genesis; all nodes have the same blocks, see checkAppHashes
	first := w.honest()[0]
	var err error
	w.history.Blocks, err = history.FetchBlocks(ctx, first.Home.RPC(), w.history.From+1, w.history.Top())
	Expect(err).NotTo(HaveOccurred())
	Expect(w.history.WriteFile(filepath.Join(w.dir, "history.json"))).To(Succeed())
	Expect(w.history.CheckBlocks(w.history.Blocks)).To(Succeed())
	Expect(w.history.CheckLinearizable(linearLimit, w.dir)).To(Succeed())
	Expect(w.history.Reads).NotTo(BeEmpty())
	// no limit on the age of proofs, since the machine may be slow
	Expect(w.history.CheckReads(history.Bounds{Recovery: time.Minute})).To(Succeed())
	answers, blocks := w.history.Staleness()
	w.log("%d of %d proved reads were older than another node's, by %d blocks at most", answers, len(w.history.Reads), blocks)
}

// checkAppHashes compares all headers of the honest nodes, and each node's state with the header
// that commits to it.
func (w *world) checkAppHashes(ctx context.Context) {
	hashes := map[int64]string{} // block hash and app hash of the first node
	compared := 0
	for _, node := range w.honest() {
		status, err := node.Home.Status(ctx)
		Expect(err).NotTo(HaveOccurred())
		rpc, err := rpchttp.New(node.Home.RPC(), "/websocket")
		Expect(err).NotTo(HaveOccurred())
		for from := status.Earliest; from <= status.Height; from += headersOnce {
			infos, err := rpc.BlockchainInfo(ctx, from, min(from+headersOnce-1, status.Height))
			Expect(err).NotTo(HaveOccurred())
			for _, meta := range infos.BlockMetas {
				is := fmt.Sprintf("block %v, state before it %v", meta.BlockID.Hash, meta.Header.AppHash)
				if hashes[meta.Header.Height] == "" {
					hashes[meta.Header.Height] = is
				}
				Expect(is).To(Equal(hashes[meta.Header.Height]), "%s at height %d", node.Name, meta.Header.Height)
				compared++
			}
		}
		w.checkState(ctx, node)
	}
	w.log("%d headers of %d heights compared", compared, len(hashes))
	Expect(compared).To(BeNumerically(">", len(hashes)), "some heights are on several nodes")
}

// checkState compares the state hash that a node reports with the next header of every other honest
// node.
func (w *world) checkState(ctx context.Context, node *testnet.Node) {
	at, err := node.Home.AppInfo(ctx)
	Expect(err).NotTo(HaveOccurred())
	for _, other := range w.honest() {
		var header runner.Header
		Expect(runner.Poll(ctx, fmt.Sprintf("block %d on %s", at.Height+1, other.Name), func() bool {
			header, err = other.Home.Header(ctx, at.Height+1)
			return err == nil
		})).To(Succeed())
		Expect(bytes.Equal(header.AppHash, at.Hash)).To(BeTrue(),
			"%s has state %X after block %d, the header on %s says %X", node.Name, at.Hash, at.Height, other.Name, header.AppHash)
	}
}

// checkBans checks that no honest node is among those that an honest node has logged as banned.
func (w *world) checkBans() {
	banned := 0
	for _, node := range w.honest() {
		for _, line := range runner.Logged(node.Home.Log(), runner.LogBanned) {
			banned++
			for _, other := range w.honest() {
				Expect(line.Fields["peer"]).NotTo(ContainSubstring(other.Home.ID()), "%s banned %s: %s", node.Name, other.Name, line.Fields["reason"])
			}
		}
	}
	w.log("%d bans, all of Byzantine nodes", banned)
}

// checkNamed checks that the logs of honest nodes name each storage node that has sent several
// false answers, and no honest node.
func (w *world) checkNamed() {
	if w.m.Shards == 0 {
		Skip("the state is not sharded")
	}
	named := map[string]int{}
	for _, node := range w.network.Nodes() {
		if node.Lies() {
			continue
		}
		for _, line := range runner.Logged(node.Home.Log(), runner.LogInvalid...) {
			for _, other := range w.network.Nodes() {
				if strings.Contains(line.Fields["node"], other.Home.ID()) {
					Expect(other.Lies()).To(BeTrue(), "%s blames %s: %v", node.Name, other.Name, line.Fields)
					named[other.Name]++
				}
			}
		}
	}
	for _, node := range w.network.Nodes() {
		set, _ := liar.ParseSet(node.Lie) // nil: it is honest
		// one or two may have come after another node's answer
		lies := len(runner.Logged(node.Home.Log(), "Misbehaving: multiproof"))
		if node.Stores() && set.Provable() && lies > 4 {
			Expect(named).To(HaveKey(node.Name))
		}
	}
	w.log("false answers by node, as counted in logs: %v", named)
}

// checkExport exports the newest snapshot of a sharded network, in the home of a running validator,
// and compares its app hash with the header that commits to it.
func (w *world) checkExport(ctx context.Context) {
	if w.m.Shards == 0 {
		Skip("the state is not sharded")
	}
	if w.docker {
		Skip("this process cannot reach the addresses in the homes")
	}
	nodes := w.honest()
	home := nodes[len(nodes)-1].Home // it dials all others
	first, err := nodes[0].Home.Header(ctx, 1)
	Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(w.dir, "exported.snapshot")
	out, err := exec.CommandContext(ctx, starlingd, "snapshots", "export", file, "--from-network", "--home", home.Dir, "--output", "json",
		"--statesync.trust_height", "1", "--statesync.trust_hash", fmt.Sprintf("%X", first.Hash)).Output()
	Expect(err).NotTo(HaveOccurred())
	var exported struct {
		Height  int64
		AppHash string `json:"app_hash"`
	}
	Expect(json.Unmarshal(out, &exported)).To(Succeed())
	header, err := nodes[0].Home.Header(ctx, exported.Height+1)
	Expect(err).NotTo(HaveOccurred())
	Expect(exported.AppHash).To(Equal(fmt.Sprintf("%X", header.AppHash)))
	w.log("exported the state of height %d", exported.Height)
}

// checkLightClient reads keys that were written before the steps, and keys that were never written,
// from every honest node, with proofs.
func (w *world) checkLightClient(ctx context.Context) {
	data := w.network.Data
	random := rand.New(rand.NewPCG(w.m.Seed, 0x6b657973))
	for _, node := range w.honest() {
		trust := client.Trust{Genesis: w.network.Genesis}
		if node.StartAt > 0 { // it does not have the first blocks
			status, err := node.Home.Status(ctx)
			Expect(err).NotTo(HaveOccurred())
			header, err := w.honest()[0].Home.Header(ctx, max(status.Earliest, 1))
			Expect(err).NotTo(HaveOccurred())
			trust = client.Trust{Height: header.Height, Hash: header.Hash}
		}
		c, err := client.Dial(ctx, []string{node.Home.RPC()}, client.WithChainID(w.network.ChainID()), client.WithVerification(trust))
		Expect(err).NotTo(HaveOccurred())
		at, err := node.Home.AppInfo(ctx)
		Expect(err).NotTo(HaveOccurred())
		// the header that proves this height exists already, so no read waits for a block
		settled := client.AtHeight(at.Height - 1)
		for range checkedKeys {
			if data.Keys > 0 {
				key, value := data.At(random.IntN(data.Keys))
				got, err := c.Get(ctx, key, settled)
				Expect(err).NotTo(HaveOccurred(), "%s: %q", node.Name, key)
				Expect(got.Verified && bytes.Equal(got.Value, value)).To(BeTrue(), "%s: %q", node.Name, key)
			}
			absent := data.Absent(random.IntN(1 << 20))
			got, err := c.Get(ctx, absent, settled)
			Expect(err).NotTo(HaveOccurred(), "%s: %q", node.Name, absent)
			Expect(got.Verified && !got.Found).To(BeTrue(), "%s: %q", node.Name, absent)
		}
	}
}

// checkEvidence looks for the evidence of a double vote in the blocks of an honest node.
func (w *world) checkEvidence(ctx context.Context) {
	doubles := 0
	for _, node := range w.network.Nodes() {
		if strings.Contains(node.Lie, "double-vote") {
			doubles++
		}
	}
	if doubles == 0 {
		Skip("no validator votes twice in this network")
	}
	home := w.honest()[0].Home
	rpc, err := rpchttp.New(home.RPC(), "/websocket")
	Expect(err).NotTo(HaveOccurred())
	next := int64(1)
	found := map[string]bool{}
	Expect(runner.Poll(ctx, "evidence of a double vote in a block", func() bool {
		status, err := home.Status(ctx)
		if err != nil {
			return false
		}
		for ; next <= status.Height; next++ {
			block, err := rpc.Block(ctx, &next)
			if err != nil {
				return false
			}
			for _, evidence := range block.Block.Evidence.Evidence {
				if double, is := evidence.(*types.DuplicateVoteEvidence); is {
					found[double.VoteA.ValidatorAddress.String()] = true
				}
			}
		}
		return len(found) == doubles
	})).To(Succeed())
	w.log("evidence of double votes by %d validators, up to height %d", len(found), next-1)
}
