package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/seeds"
)

// shardedTorture is a network of four validators with a partial state, and of six storage nodes,
// two for each third of the keys. No node has the whole state.
type shardedTorture struct {
	*testing.T
	random              *rand.Rand
	ctx                 context.Context
	procs               *runner.Processes
	validators, storage []*runner.Home
	running             map[*runner.Home]*runner.Process
	load                *load
}

// victims names the processes that are killed at the same time.
type victims string

const tortureRanges = 3

const (
	oneReplica    victims = "a storage node"
	wholeRange    victims = "both storage nodes of a range"
	allStorage    victims = "all storage nodes"
	oneValidator  victims = "a validator"
	twoValidators victims = "two validators"
	everybody     victims = "everybody"
	// the replicas of its range are then at different heights
	everybodyLater victims = "a storage node, and later everybody else"
)

// TestTortureSharded kills storage nodes and validators at random instants, alone, together and
// with all other nodes, while clients write. After each kill the network must recover by itself,
// with the same app hashes everywhere, and with all acknowledged writes:
//
//	start ──► (kill) ──► start ──► all validators make blocks again ──► … ──► compare
func TestTortureSharded(t *testing.T) {
	s := settingsOfTorture(t)
	t.Logf("to repeat: %s=%d %s=%d go test -count=1 -v ./e2e -run '^TestTortureSharded$'", seeds.Variable, s.seed, killsVariable, s.kills)
	n := newShardedTorture(t, s)
	var all []victims
	for len(all) < s.kills {
		turn := []victims{oneReplica, oneValidator, wholeRange, everybody, twoValidators, allStorage, everybodyLater}
		n.random.Shuffle(len(turn), func(i, j int) { turn[i], turn[j] = turn[j], turn[i] })
		all = append(all, turn...)
	}
	loading, stop := context.WithCancel(n.ctx)
	t.Cleanup(func() { stop(); n.load.wg.Wait() })
	for i, h := range n.validators {
		n.load.start(loading, tortureChain, i, h, s.seed)
	}
	n.advance("the first blocks with transactions", 3)
	for i, who := range all[:s.kills] {
		n.round(i, who)
	}
	stop()
	n.load.wg.Wait()
	n.compare()
}

func newShardedTorture(t *testing.T, s tortureSettings) *shardedTorture {
	n := &shardedTorture{T: t, random: rand.New(rand.NewPCG(s.seed, 15)), load: newLoad(s.valueBytes()), running: map[*runner.Home]*runner.Process{}}
	n.procs, n.ctx = processes(t, 2*time.Minute+time.Duration(s.kills)*patienceAfterKill/2)
	var names []string
	for i := range 2 * tortureRanges {
		names = append(names, fmt.Sprintf("storage-%d", i))
	}
	for i := range 4 {
		names = append(names, fmt.Sprintf("validator-%d", i))
	}
	homes := makeHomes(n.ctx, t, tortureChain, names...)
	n.storage, n.validators = homes[:2*tortureRanges:2*tortureRanges], homes[2*tortureRanges:]
	_, err := runner.Genesis(n.validators, n.storage, tortureChain, map[string]any{
		"chunk_bytes": 1024, "snapshot_interval": snapshotInterval, "open": false, "admins": []string{},
		"grants": []map[string]any{{"grantee": "*", "prefix": torturePrefix}},
	})
	require.NoError(t, err)
	// keys are torture/WRITER/HEX
	ranges, err := runner.Divide(n.storage, tortureRanges, func(i int) string { return torturePrefix + strconv.Itoa(i) })
	require.NoError(t, err)
	for i, h := range homes {
		require.NoError(t, h.SetRanges(ranges))
		require.NoError(t, h.Configure(func(c *cfg.Config) {
			c.P2P.PersistentPeers = runner.Peers(n.validators[:max(0, i-len(n.storage))]...)
			if i < len(n.storage) {
				c.P2P.PersistentPeers = runner.Peers(n.validators...)
			}
			c.Consensus.TimeoutCommit, c.Consensus.CreateEmptyBlocksInterval = 100*time.Millisecond, 0
			c.Consensus.TimeoutPropose = 600 * time.Millisecond
			c.Consensus.TimeoutPrevote, c.Consensus.TimeoutPrecommit = 200*time.Millisecond, 200*time.Millisecond
			c.LogLevel = "consensus:error,state:error,p2p:none,mempool:error,txindex:error,statesync:error,*:info"
		}))
	}
	n.sign(homes)
	for _, h := range homes {
		n.start(h)
	}
	n.advance("blocks", 1)
	return n
}

func (n *shardedTorture) start(h *runner.Home) {
	n.Helper()
	h.Release()
	args := []string{"start", "--home", h.Dir, "--state.mode=sharded", "--state.retain_depth=3", "--state.retain_window_blocks=12", "--state.pruning_keep_recent=40"}
	if slices.Contains(n.storage, h) {
		// few heights, so that states are written to disk, and starts begin with them
		args = []string{"storage", "start", "--home", h.Dir, "--storage_node.serve_heights=32"}
	}
	process, err := n.procs.Start(runner.Spec{Name: h.Name, Path: starlingd, Args: args, Log: h.Log()})
	require.NoError(n, err)
	n.running[h] = process
}

// of returns the nodes to kill for a kind of victims.
func (n *shardedTorture) of(who victims) []*runner.Home {
	switch who {
	case oneReplica:
		return []*runner.Home{n.storage[n.random.IntN(len(n.storage))]}
	case wholeRange:
		i := n.random.IntN(tortureRanges)
		return []*runner.Home{n.storage[i], n.storage[i+tortureRanges]}
	case allStorage:
		return slices.Clone(n.storage)
	case oneValidator:
		return []*runner.Home{n.validators[n.random.IntN(4)]}
	case twoValidators:
		i := n.random.IntN(4)
		return []*runner.Home{n.validators[i], n.validators[(i+1)%4]}
	}
	return slices.Concat(n.storage, n.validators)
}

func (n *shardedTorture) round(i int, who victims) {
	n.Helper()
	delay := time.Duration(n.random.IntN(2500)) * time.Millisecond
	pause(n.ctx, delay)
	victims := n.of(who)
	n.random.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
	if who == everybodyLater {
		first := slices.IndexFunc(victims, func(h *runner.Home) bool { return slices.Contains(n.storage, h) })
		n.running[victims[first]].Kill()
		n.advance("blocks without "+victims[first].Name, 2)
	}
	for _, h := range victims {
		n.running[h].Kill()
	}
	down := time.Duration(n.random.IntN(1500)) * time.Millisecond
	pause(n.ctx, down)
	killed := time.Now()
	for _, h := range victims {
		n.start(h)
	}
	n.advance(fmt.Sprintf("blocks after kill %d, of %s", i+1, who), 3)
	_, transactions := n.load.reached()
	n.Logf("kill %d, %s after %v, down for %v: blocks again after %.1f s, %d transactions so far", i+1, who, delay, down, time.Since(killed).Seconds(), transactions)
}

// advance waits until all validators are some blocks above the present maximum.
func (n *shardedTorture) advance(what string, blocks int64) {
	n.Helper()
	var highest int64
	for _, h := range n.validators {
		if at, err := h.AppInfo(n.ctx); err == nil {
			highest = max(highest, at.Height)
		}
	}
	n.await(what, func() bool {
		return !slices.ContainsFunc(n.validators, func(h *runner.Home) bool {
			at, err := h.AppInfo(n.ctx)
			return err != nil || at.Height < highest+blocks
		})
	})
}

func (n *shardedTorture) await(what string, done func() bool) {
	n.Helper()
	ctx, cancel := context.WithTimeoutCause(n.ctx, patienceAfterKill, fmt.Errorf("not within %v", patienceAfterKill))
	defer cancel()
	if err := runner.Poll(ctx, what, done); err != nil {
		for _, h := range slices.Concat(n.storage, n.validators) {
			n.Logf("the log of %s ends with\n  %s", h.Name, strings.Join(runner.Tail(h.Log(), 12), "\n  "))
		}
		require.NoError(n, err)
	}
}

// compare compares all validators with each other, and their states, read with proofs, with the
// clients' ledger.
func (n *shardedTorture) compare() {
	n.Helper()
	n.advance("the last blocks", 2)
	at, err := n.validators[0].AppInfo(n.ctx)
	require.NoError(n, err)
	trusted, err := n.validators[0].Header(n.ctx, at.Height)
	require.NoError(n, err)
	for i, h := range n.validators {
		for height := max(at.Height-5, 1); height <= at.Height; height++ {
			want, err := n.validators[0].Header(n.ctx, height)
			require.NoError(n, err)
			got, err := h.Header(n.ctx, height)
			require.NoError(n, err)
			require.Equal(n, want.AppHash, got.AppHash, "%s, header %d", h.Name, height)
		}
		other := n.validators[(i+1)%len(n.validators)]
		c, err := client.Dial(n.ctx, []string{h.RPC()}, client.WithWitnesses(other.RPC()), client.WithChainID(tortureChain),
			client.WithVerification(client.Trust{Height: trusted.Height, Hash: trusted.Hash}))
		require.NoError(n, err)
		written, _ := n.load.reached()
		n.Logf("%s has all of %d keys", h.Name, n.load.compare(n.ctx, n.T, c, written))
	}
}
