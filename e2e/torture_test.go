package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/tx"
)

const (
	tortureChain     = "torture"
	snapshotInterval = 10
	// shortTorture is the number of kills of a plain `go test`, tortureKills that of `make
	// torture`.
	shortTorture, tortureKills = 7, 50
	// patienceAfterKill is the time limit for the victim to follow the network again.
	patienceAfterKill = 90 * time.Second
)

// TestTorture kills a validator at random instants, again and again, while clients write. After
// each kill it must recover by itself and have the network's state:
//
//	start ──► (kill) ──► start ──► follows the network again ──► compare ──► …
//	            running      while it makes blocks: writes, flushes, pruning, snapshots
//	            starting     a second time, while it rebuilds the tree, replays, fetches blocks
//	            restoring    after a reset, while it restores a snapshot
//	            joined       after a reset, when the snapshot is restored and blocks come
//
// The test compares the app hash of every block that the victim has with the network's, as computed
// by the victim and by proofs of every state that it keeps; and every key that a client wrote, in
// one state, with proofs. A killed restore resumes with its verified chunks, and until blocks come
// the validator's signing state does not change.
func TestTorture(t *testing.T) {
	s := settingsOfTorture(t)
	t.Logf("to repeat: %s=%d %s=%d %s=%t %s=%t go test -count=1 -v ./e2e -run '^TestTorture$'", seeds.Variable, s.seed, killsVariable, s.kills,
		pagedVariable, s.paged, inBandVariable, s.inBand)
	n := newTorture(t, s)
	for i, kind := range n.rounds() {
		n.round(i, kind)
	}
	n.finish()
}

// Variables that configure the test.
const (
	killsVariable = "STARLING_TORTURE_KILLS"
	// the victim keeps only a part of its state in memory
	pagedVariable  = "STARLING_TORTURE_PAGED"
	inBandVariable = "STARLING_TORTURE_IN_BAND" // the victim joins by CometBFT's own state sync
)

type tortureSettings struct {
	seed          uint64
	kills         int
	paged, inBand bool
	disk          interface { // with the victim's data; nil: the home's
		mount(t *testing.T, at, file string)
		cutPower(t *testing.T, kill func())
	}
}

func settingsOfTorture(t *testing.T) tortureSettings {
	t.Helper()
	s := tortureSettings{seed: seeds.New(t), kills: shortTorture}
	var err error
	if v := os.Getenv(killsVariable); v != "" {
		s.kills, err = strconv.Atoi(v)
		require.NoError(t, err, killsVariable)
	}
	for name, setting := range map[string]*bool{pagedVariable: &s.paged, inBandVariable: &s.inBand} {
		if v := os.Getenv(name); v != "" {
			*setting, err = strconv.ParseBool(v)
			require.NoError(t, err, name)
		}
	}
	return s
}

// valueBytes gives about 30 MB of state if the state has to exceed its memory; otherwise the state
// is small, so that the test is fast.
func (s tortureSettings) valueBytes() int {
	if s.paged {
		return 8000
	}
	return 200
}

// transactions is the number of transactions before the first kill, so that a restore takes some
// time.
func (s tortureSettings) transactions() int {
	if s.paged {
		return 250
	}
	return 100
}

// sendRate limits the bytes a second from each other validator to a joining node: a restore takes
// some seconds, so that it can be killed.
func (s tortureSettings) sendRate() int {
	if s.paged {
		return 4_000_000
	}
	return 100_000
}

type killKind string

const (
	running   killKind = "running"
	starting  killKind = "starting"
	restoring killKind = "restoring"
	joined    killKind = "joined"
)

// torture is a network of validators, one of which is the victim.
type torture struct {
	*testing.T
	tortureSettings
	random  *rand.Rand
	ctx     context.Context
	others  []*runner.Home // these are not killed
	victim  *runner.Home
	procs   *runner.Processes
	process *runner.Process // the victim's process; nil while it is down
	load    *load
	stop    context.CancelFunc // of the load

	logFrom int64  // size of the victim's log at its last start
	signing []byte // its signing state then

	killed  map[killKind]int
	replays int // kills after which blocks were executed again
	resumed int // kills after which a restore resumed
	missed  int // kills that came too late for their purpose
	heights int // number of compared heights
	states  int // number of states compared by proofs
}

func newTorture(t *testing.T, s tortureSettings) *torture {
	n := &torture{T: t, tortureSettings: s, random: rand.New(rand.NewPCG(s.seed, 0)), load: newLoad(s.valueBytes()), killed: map[killKind]int{}}
	n.procs, n.ctx = processes(t, time.Minute+time.Duration(s.kills)*patienceAfterKill/2)
	n.homes(4)
	for _, h := range n.others {
		h.Release()
		args := []string{"start", "--home", h.Dir, "--snapshots.keep_recent=4", fmt.Sprintf("--transport.send_rate=%d", s.sendRate())}
		start(t, n.procs, runner.Spec{Name: h.Name, Path: starlingd, Args: args, Log: h.Log()})
	}
	n.victim.Release()
	if n.disk != nil {
		state := n.victim.SigningState()
		n.disk.mount(t, filepath.Dir(state), filepath.Base(state))
	}
	n.startVictim()
	await(t, n.ctx, n.others[0], 1)

	loadCtx, cancel := context.WithCancel(n.ctx)
	n.stop = cancel
	t.Cleanup(func() { cancel(); n.load.wg.Wait() })
	for i, h := range append(n.others, n.victim) {
		n.load.start(loadCtx, tortureChain, i, h, s.seed)
	}
	n.await("a state of some size", func() bool {
		_, transactions := n.load.reached()
		return transactions >= s.transactions()
	})
	return n
}

// homes makes the homes, with small chunks and frequent snapshots, so that much happens in a short
// time.
func (n *torture) homes(validators int) {
	names := []string{"victim"}
	for i := range validators - 1 {
		names = append(names, fmt.Sprintf("validator-%d", i))
	}
	slices.Reverse(names) // the victim comes last
	all := makeHomes(n.ctx, n.T, tortureChain, names...)
	n.others, n.victim = all[:validators-1:validators-1], all[validators-1]
	_, err := runner.Genesis(all, nil, tortureChain, map[string]any{
		"chunk_bytes": 1024, "snapshot_interval": snapshotInterval, "open": false, "admins": []string{},
		"grants": []map[string]any{{"grantee": "*", "prefix": torturePrefix}},
	})
	require.NoError(n, err)
	for i, h := range all {
		require.NoError(n, h.Configure(func(c *cfg.Config) {
			// only one node of each pair dials the other
			c.P2P.PersistentPeers = runner.Peers(all[:i]...)
			c.Consensus.TimeoutCommit, c.Consensus.CreateEmptyBlocksInterval = 100*time.Millisecond, 0
			// short, for the rounds whose proposer is the killed victim
			c.Consensus.TimeoutPropose = 600 * time.Millisecond
			c.Consensus.TimeoutPrevote, c.Consensus.TimeoutPrecommit = 200*time.Millisecond, 200*time.Millisecond
			c.LogLevel = "consensus:error,state:error,p2p:none,mempool:error,txindex:error,statesync:error,*:info"
		}))
	}
}

// startVictim starts the victim with settings that make flushes, pruning and snapshots frequent;
// some of them are drawn each time.
func (n *torture) startVictim() {
	// from a flush of each block to flushes for snapshots only
	flush := []struct {
		blocks   int
		interval time.Duration
	}{{1, time.Second}, {4, time.Second}, {50, 10 * time.Second}, {50, 10 * time.Second}}[n.random.IntN(4)]
	args := []string{
		"start", "--home", n.victim.Dir, "--state.min_retain_blocks=20", "--state.pruning_keep_recent=25", "--snapshots.keep_recent=2",
		fmt.Sprintf("--disk.flush_blocks=%d", flush.blocks), fmt.Sprintf("--disk.flush_interval=%v", flush.interval),
		"--disk.max_backlog_blocks=60",
	}
	if n.inBand {
		args = append(args, "--join.mode=cometbft")
	}
	if n.disk != nil {
		args = append(args, "--disk.min_free_bytes=0") // it is small
	}
	if n.paged {
		args = append(args, "--disk.state_in_memory=false", "--disk.cache_bytes=16777216")
	}
	if info, err := os.Stat(n.victim.Log()); err == nil {
		n.logFrom = info.Size()
	}
	var err error
	n.signing, err = os.ReadFile(n.victim.SigningState())
	require.NoError(n, err)
	n.process, err = n.procs.Start(runner.Spec{Name: n.victim.Name, Path: starlingd, Args: args, Log: n.victim.Log()})
	require.NoError(n, err)
}

// rounds draws the kinds of kills: each kind in turn, in an order that depends on the seed.
func (n *torture) rounds() []killKind {
	var all []killKind
	for len(all) < n.kills {
		turn := []killKind{running, starting, restoring, running, starting, joined}
		n.random.Shuffle(len(turn), func(i, j int) { turn[i], turn[j] = turn[j], turn[i] })
		all = append(all, turn...)
	}
	return all[:n.kills]
}

func (n *torture) round(i int, kind killKind) {
	n.Helper()
	delay := time.Duration(n.random.IntN(2500)) * time.Millisecond
	hit := true
	switch kind {
	case running:
	case starting: // after a crash, so that there are blocks to execute again
		pause(n.ctx, delay)
		n.process.Kill()
		delay = time.Duration(n.random.IntN(700)) * time.Millisecond
		n.startVictim()
	case restoring:
		delay /= 8 // a restore is short
		n.join()
		n.await("the restore to begin", func() bool {
			values, err := n.victim.Scrape(n.ctx)
			return err == nil && values.Starling("statesync_snapshot_chunks") > 0 || n.has()
		})
		hit = !n.has()
	case joined:
		delay /= 2
		n.join()
		n.await("the restore to end", n.has)
	}
	pause(n.ctx, delay)
	if kind == restoring {
		hit = hit && !n.has()
	}
	before, _ := n.victim.AppInfo(n.ctx)
	var verified int64
	if kind == restoring && hit {
		verified = n.verified()
	}
	n.process.Kill()
	n.compareSigning()
	height := n.restores(n.logFrom)
	killed := time.Now()
	n.killed[kind]++
	if !hit {
		n.missed++
	}

	if n.random.IntN(3) == 0 { // the disk has a complete state of some height, or none
		n.run("verify", "--snapshots")
		killed = time.Now()
	}
	n.startVictim()
	n.backWithTheNetwork()
	back := time.Since(killed)
	if verified > 0 {
		n.compareRestore(height)
	}
	n.compare()
	_, transactions := n.load.reached()
	from := n.rebuiltAt()
	if from > 0 && from < before.Height {
		n.replays++
	}
	n.Logf("kill %d, %s after %v at height %d: back after %.1f s from height %d on disk, %d transactions so far, hit %t",
		i+1, kind, delay, before.Height, back.Seconds(), from, transactions, hit)
}

var rebuilt = regexp.MustCompile(`Rebuilt the tree .*height=(\d+)`)

// rebuiltAt returns the height of the state that the victim found on disk at its last start, from
// its log; 0 if there was none.
func (n *torture) rebuiltAt() (height int64) {
	n.Helper()
	content, err := os.ReadFile(n.victim.Log())
	require.NoError(n, err)
	started := bytes.LastIndex(content, []byte("Starling node started")) // the last line of a start
	if started < 0 {
		return 0
	}
	content = content[:started]
	content = content[bytes.LastIndex(content, []byte("Starling node started"))+1:]
	if found := rebuilt.FindAllSubmatch(content, -1); found != nil {
		height, err = strconv.ParseInt(string(found[len(found)-1][1]), 10, 64)
		require.NoError(n, err)
	}
	return height
}

// has reports whether the victim has a state.
func (n *torture) has() bool {
	at, err := n.victim.AppInfo(n.ctx)
	return err == nil && at.Height > 0
}

// halt stops the victim cleanly.
func (n *torture) halt() {
	n.Helper()
	require.NoError(n, n.process.Stop(30*time.Second))
	require.NoError(n, n.process.ExitError())
}

// verified returns the number of chunks that the victim has verified since its start.
func (n *torture) verified() int64 {
	values, err := n.victim.Scrape(n.ctx)
	if err != nil {
		return 0
	}
	return values.Starling("statesync_chunks_verified")
}

// restores returns the height of the snapshot whose restore the victim began last, from the log
// after an offset; 0 if there is none.
func (n *torture) restores(from int64) int64 {
	n.Helper()
	lines := n.logged(from, runner.LogRestoring)
	if len(lines) == 0 {
		return 0
	}
	return lines[len(lines)-1].Int("height")
}

// logged reads the victim's log from an offset.
func (n *torture) logged(from int64, messages ...string) []runner.LogLine {
	n.Helper()
	lines, err := runner.LoggedFrom(n.victim.Log(), from, messages...)
	require.NoError(n, err)
	return lines
}

// compareRestore checks that the restore of a snapshot reuses the chunks that a killed restore of
// the same snapshot had verified.
func (n *torture) compareRestore(height int64) {
	n.Helper()
	if n.inBand {
		return // it starts again
	}
	for _, line := range n.logged(n.logFrom, runner.LogRestored) {
		if line.Int("height") == height {
			require.Positive(n, line.Int("reused"), "%v", line)
			n.resumed++
		}
	}
}

// compareSigning compares the victim's signing state with that at its start: it must be the same if
// the victim had no state yet, and never lower.
func (n *torture) compareSigning() {
	n.Helper()
	now, err := os.ReadFile(n.victim.SigningState())
	require.NoError(n, err)
	if len(n.logged(n.logFrom, "Starling node started", "Rebuilt the tree")) == 0 {
		require.Equal(n, string(n.signing), string(now))
	}
	require.GreaterOrEqual(n, signedHeight(n.T, now), signedHeight(n.T, n.signing))
}

func signedHeight(t *testing.T, state []byte) int64 {
	t.Helper()
	var signed struct {
		Height int64 `json:"height,string"`
	}
	require.NoError(t, json.Unmarshal(state, &signed), "%s", state)
	return signed.Height
}

// join stops the victim, removes its data and starts a join by state sync.
func (n *torture) join() {
	n.Helper()
	n.halt()
	signing, err := os.ReadFile(n.victim.SigningState())
	require.NoError(n, err)
	n.run("unsafe-reset-all", "--yes")
	kept, err := os.ReadFile(n.victim.SigningState())
	require.NoError(n, err)
	require.Equal(n, string(signing), string(kept))
	at, err := n.others[0].AppInfo(n.ctx)
	require.NoError(n, err)
	joinsFrom(n.T, n.ctx, n.victim, nil, n.others[0], at.Height, func(c *cfg.Config) {
		if n.inBand {
			c.StateSync.RPCServers = []string{n.others[0].RPC(), n.others[1].RPC()}
		}
	})
	n.startVictim()
}

// run runs a command on the victim's home.
func (n *torture) run(args ...string) string {
	n.Helper()
	out, err := exec.CommandContext(n.ctx, starlingd, append(args, "--home", n.victim.Dir)...).CombinedOutput()
	require.NoError(n, err, "%s", out)
	return string(out)
}

func (n *torture) await(what string, done func() bool) {
	n.Helper()
	ctx, cancel := context.WithTimeoutCause(n.ctx, patienceAfterKill, fmt.Errorf("not within %v", patienceAfterKill))
	defer cancel()
	if err := runner.Poll(ctx, what, done); err != nil {
		n.Logf("the last lines of the victim's log:")
		for _, line := range runner.Tail(n.victim.Log(), 30) {
			n.Log(line)
		}
		require.NoError(n, err)
	}
}

// backWithTheNetwork waits until the victim has all blocks committed up to now, and takes part in
// consensus. (While it joins, its RPC does not answer.)
func (n *torture) backWithTheNetwork() {
	n.Helper()
	network, err := n.others[0].AppInfo(n.ctx)
	require.NoError(n, err)
	n.await("the victim to be with the network again", func() bool {
		status, err := n.victim.Status(n.ctx)
		if err != nil || status.CatchingUp || status.Height < network.Height {
			return false
		}
		at, err := n.victim.AppInfo(n.ctx)
		return err == nil && at.Height >= network.Height
	})
}

// compare compares the victim with the network and with the clients' ledger.
func (n *torture) compare() {
	n.Helper()
	n.compareResults()
	at, err := n.victim.AppInfo(n.ctx)
	require.NoError(n, err)
	await(n.T, n.ctx, n.others[0], at.Height+1)
	trusted, err := n.others[0].Header(n.ctx, at.Height+1)
	require.NoError(n, err)
	var c *client.Client
	n.await("the victim's headers", func() bool {
		c, err = client.Dial(n.ctx, []string{n.victim.RPC()}, client.WithWitnesses(n.others[1].RPC()), client.WithChainID(tortureChain),
			client.WithVerification(client.Trust{Height: trusted.Height, Hash: trusted.Hash}))
		return err == nil
	})
	n.compareStates(c, at.Height)
	n.compareKeys(c)
}

// compareResults compares the app hashes that the victim computed for its blocks with the
// network's.
func (n *torture) compareResults() {
	n.Helper()
	status, err := n.victim.Status(n.ctx)
	require.NoError(n, err)
	victim, other := n.rpc(n.victim), n.rpc(n.others[0])
	for height := max(status.Earliest, 1); height < status.Height; height++ {
		mine, err := victim.BlockResults(n.ctx, &height)
		if err != nil {
			if now, err := n.victim.Status(n.ctx); err == nil && now.Earliest > height {
				continue // pruned meanwhile
			}
		}
		require.NoError(n, err, "height %d of %d to %d", height, status.Earliest, status.Height)
		theirs, err := other.BlockResults(n.ctx, &height)
		require.NoError(n, err)
		require.Equal(n, fmt.Sprintf("%X", theirs.AppHash), fmt.Sprintf("%X", mine.AppHash), "app hash after block %d", height)
		n.heights++
	}
}

func (n *torture) rpc(h *runner.Home) *rpchttp.HTTP {
	n.Helper()
	c, err := rpchttp.New(h.RPC(), "/websocket")
	require.NoError(n, err)
	return c
}

// compareStates proves that each state that the victim keeps is the one that the next header
// commits to.
func (n *torture) compareStates(c *client.Client, newest int64) {
	n.Helper()
	for height := newest; height > 0; height-- {
		_, err := c.Get(n.ctx, []byte(torturePrefix+"nobody writes this"), client.AtHeight(height))
		if err != nil {
			status, _ := n.victim.Status(n.ctx)
			if errors.Is(err, &tx.Error{Code: tx.CodeUnknownHeight}) || height+1 < status.Earliest {
				return // it keeps no older state, or not its header
			}
		}
		require.NoError(n, err, "state at height %d", height)
		n.states++
	}
}

// compareKeys reads all keys from one state of the victim, with proofs.
func (n *torture) compareKeys(c *client.Client) {
	n.Helper()
	written, _ := n.load.reached()
	await(n.T, n.ctx, n.victim, written)
	n.load.compare(n.ctx, n.T, c, written)
}

// compare reads all keys with proofs from one state, at a minimum height or above, and compares
// them with the ledger.
func (l *load) compare(ctx context.Context, t *testing.T, c *client.Client, written int64) (keys int) {
	t.Helper()
	state, height := map[string][]byte{}, int64(0)
	for start := []byte(torturePrefix); start != nil; {
		options := []client.ReadOption{client.Limit(client.MaxRangeLimit)}
		if height > 0 {
			options = append(options, client.AtHeight(height))
		}
		page, err := c.Range(ctx, start, client.PrefixEnd([]byte(torturePrefix)), options...)
		require.NoError(t, err)
		require.True(t, page.Verified)
		for _, entry := range page.Entries {
			state[string(entry.Key)] = bytes.Clone(entry.Value)
		}
		start, height = page.Next, page.Height
	}
	require.GreaterOrEqual(t, height, written)
	require.NotEmpty(t, state)
	require.NoError(t, l.check(height, state))
	return len(state)
}

// finish rolls the victim back, as an operator may, ends the load, and compares once more when the
// network is idle.
func (n *torture) finish() {
	n.Helper()
	for _, hard := range []bool{false, true} {
		// a snapshot to roll back to, if it has just joined
		interval := int64(snapshotInterval)
		at, err := n.victim.AppInfo(n.ctx)
		require.NoError(n, err)
		await(n.T, n.ctx, n.victim, (at.Height/interval+1)*interval+2)
		n.halt()
		n.run("verify", "--snapshots")
		n.Log(n.run("rollback", "--yes", fmt.Sprintf("--hard=%t", hard)))
		n.startVictim()
		n.backWithTheNetwork()
		n.compare()
	}
	n.stop()
	n.load.wg.Wait()
	n.backWithTheNetwork()
	n.compare()
	height, transactions := n.load.reached()
	n.Logf("%v kills (%d missed their purpose; after %d blocks were executed again, after %d a restore was resumed), %d transactions committed up to height %d, %d of %d attempts with unknown outcome; compared %d heights and %d states by proof",
		n.killed, n.missed, n.replays, n.resumed, transactions, height, n.load.unknown.Load(), n.load.sent.Load(), n.heights, n.states)
	n.halt()
	n.Log(n.run("verify", "--snapshots") + n.run("inspect"))
	if n.kills >= tortureKills {
		for _, kind := range []killKind{running, starting, restoring, joined} {
			require.NotZero(n, n.killed[kind], kind)
		}
		require.NotZero(n, n.replays, "after no kill was the disk behind the blocks")
		require.True(n, n.inBand || n.resumed > 0, "no restore was resumed")
	}
}
