package e2ebench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	rpchttp "github.com/cometbft/cometbft/rpc/client/http"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/e2e/relay/link"
	"github.com/starling-kv/starling/e2e/runner"
)

// discovery is CometBFT's least time for the discovery of snapshots, at the beginning of its state
// sync.
const discovery = 5 * time.Second

// NewcomerOptions configure a run with joins over a network.
type NewcomerOptions struct {
	State
	Network
	Delays    []int // ms, one way, between the new node and each validator
	Rounds    int
	Lying     int    // number of Byzantine validators: 0 or 1
	Byzantine string // path of a built program
}

// Flags adds the flags of newcomer.
func (o *NewcomerOptions) Flags(f *harness.Flags) {
	// CometBFT makes a block after that of each transaction, to prove the app hash. So the chain
	// may end with the fourth block after the snapshot, with Lying the fifth, which must not make
	// another snapshot.
	o.State.flags(f, 6)
	f.Ints(&o.Delays, "delays", []int{0, 40}, 0, 1000, "delays between the new node and each validator in ms, one way")
	f.Int(&o.Rounds, "rounds", 3, 1, 100, "number of rounds; each starts both networks, and joins each once with each delay")
	f.Int(&o.Lying, "lying", 0, 0, 1, "number of Byzantine validators: Starling's serves damaged chunks, IAVL's the chunks of a false state")
	f.Program(&o.Byzantine, "byzantine")
	o.Network.flags(f, 2) // CometBFT's state sync needs two RPC servers
}

// NewcomerResult is the outcome of a run.
type NewcomerResult struct {
	Joins []NewcomerJoins `json:"joins"`

	Keys       int             `json:"keys"`
	ChunkBytes int             `json:"chunk_bytes"`
	Validators int             `json:"validators"`
	Lying      int             `json:"lying"`
	Rounds     int             `json:"rounds"`
	Seed       uint64          `json:"seed"`
	Machine    harness.Machine `json:"machine"`
}

// NewcomerJoins are the joins with a delay.
type NewcomerJoins struct {
	DelayMS  int            `json:"delay_ms"`
	Starling []NewcomerJoin `json:"starling"`
	IAVL     []NewcomerJoin `json:"iavl"`
	// Ratio is IAVL's time over Starling's, round by round; AfterDiscovery is the same without the
	// discovery.
	Ratio          harness.Interval `json:"ratio"`
	AfterDiscovery harness.Interval `json:"after_discovery_ratio"`
}

// NewcomerJoin is one join.
type NewcomerJoin struct {
	// Seconds are from the start of the process until it answers with the height and the hash of
	// the restored state, which the network confirms.
	Seconds float64 `json:"s"`
	// AfterDiscoveryS is Seconds without the fixed time in which CometBFT discovers snapshots, and
	// also connects. Starling has no such time.
	AfterDiscoveryS float64 `json:"after_discovery_s"`
	Bytes           int64   `json:"bytes"` // of chunks, verified
}

func (j *NewcomerJoins) judge() {
	var whole, after []float64
	for i := range j.IAVL {
		whole = append(whole, harness.Ratio(j.IAVL[i].Seconds, j.Starling[i].Seconds))
		after = append(after, harness.Ratio(j.IAVL[i].AfterDiscoveryS, j.Starling[i].Seconds))
	}
	j.Ratio, j.AfterDiscovery = harness.MedianInterval(whole), harness.MedianInterval(after)
}

// RunNewcomer measures how long a new node takes to join a network by its snapshots, over links
// with a delay. It reports to progress, and always stops its processes.
func RunNewcomer(ctx context.Context, o NewcomerOptions, progress *harness.Progress) (*NewcomerResult, error) {
	result := &NewcomerResult{
		Keys: o.Keys, ChunkBytes: o.ChunkBytes, Validators: o.Validators, Lying: o.Lying, Rounds: o.Rounds, Seed: o.Seed, Machine: harness.ThisMachine(),
	}
	for _, delay := range o.Delays {
		result.Joins = append(result.Joins, NewcomerJoins{DelayMS: delay})
	}
	err := harness.InFolder(ctx, progress, func(dir string) error {
		starlingd, iavlnode, err := o.programs(ctx, &o.Network, progress)
		if err != nil {
			return err
		}
		var byzantine string
		if o.Lying > 0 {
			if byzantine, err = harness.Build(ctx, o.Byzantine, ".", "github.com/starling-kv/starling/e2e/byzantine", progress); err != nil {
				return err
			}
		}
		turn, names := 0, []string{nameIAVLPausing, nameSnapshots}
		progress.Begin("join", "nodes", o.Rounds*len(names)*len(o.Delays))
		return harness.InTurns(o.Rounds, names, func(_ int, name string) error {
			progress.Working(name)
			turn++
			k := o.State.network(&o.Network, name, starlingd, iavlnode)
			switch {
			case o.Lying == 0:
			case name == nameIAVLPausing:
				k.Last = []string{iavlnode, "lie"}
			default:
				k.Last = []string{byzantine, "--lie", "corrupt"}
			}
			edit := k.Edit
			k.Edit = func(c *cfg.Config) {
				edit(c)
				c.Consensus.CreateEmptyBlocks = false // no further snapshot during the joins
				// A commit may wait for a snapshot.
				c.RPC.TimeoutBroadcastTxCommit = o.patience()
			}
			return o.turn(ctx, k, filepath.Join(dir, fmt.Sprintf("network-%d", turn)), func(i int, j NewcomerJoin) {
				of := &result.Joins[i].Starling
				if name == nameIAVLPausing {
					of = &result.Joins[i].IAVL
				}
				*of = append(*of, j)
				progress.Add(1)
			})
		})
	})
	if err != nil {
		return nil, err
	}
	for i := range result.Joins {
		result.Joins[i].judge()
	}
	return result, nil
}

// turn starts a network, and joins it with each delay.
func (o *NewcomerOptions) turn(ctx context.Context, k kind, dir string, joined func(i int, j NewcomerJoin)) (err error) {
	n, err := k.start(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Discard()) }()
	ctx = n.Context()
	if k.name == nameSnapshots {
		if err := o.fill(ctx, n); err != nil {
			return fmt.Errorf("%s: fill: %w", k.name, err)
		}
	}
	snapshot, err := o.toSnapshot(ctx, n)
	if err != nil {
		return fmt.Errorf("%s: %w", k.name, err)
	}
	for i, delay := range o.Delays {
		j, err := o.join(ctx, n, k, i, time.Duration(delay)*time.Millisecond, snapshot)
		if err != nil {
			return fmt.Errorf("%s, %d ms: %w", k.name, delay, err)
		}
		joined(i, j)
	}
	return nil
}

// toSnapshot makes blocks until all validators have a snapshot with all keys, and the two headers
// after it that prove it; with Lying, one more, since a Byzantine node's snapshot claims to be of
// the next height. It returns the snapshot's height.
func (o *NewcomerOptions) toSnapshot(ctx context.Context, n *network.Network) (snapshot int64, err error) {
	c, err := rpchttp.New(n.Validators[0].RPC(), "/websocket")
	if err != nil {
		return 0, err
	}
	interval, after := int64(o.Interval), int64(2+o.Lying)
	for i := 0; ; i++ {
		done, err := c.BroadcastTxCommit(ctx, fmt.Appendf(nil, "block-%d=x", i))
		if err != nil {
			return 0, err
		}
		if done.CheckTx.Code+done.TxResult.Code != 0 {
			return 0, fmt.Errorf("a node rejected a transaction: %s%s", done.CheckTx.Log, done.TxResult.Log)
		}
		if snapshot == 0 {
			snapshot = (done.Height + interval) / interval * interval
		}
		if done.Height >= snapshot+after {
			break
		}
	}
	return snapshot, n.Reach(ctx, snapshot+after)
}

// join starts a new node that knows the validators' addresses on a relay, waits until it has the
// state, and ends it.
func (o *NewcomerOptions) join(ctx context.Context, n *network.Network, k kind, i int, delay time.Duration, snapshot int64) (j NewcomerJoin, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.patience())
	defer cancel()
	homes, err := n.Homes(ctx, fmt.Sprintf("newcomer-%d", i), 1)
	if err != nil {
		return j, err
	}
	h := homes[0]
	defer h.Release()
	relay, peers, rpcs, err := delayed(h, n.Validators, delay)
	if err != nil {
		return j, err
	}
	defer relay.Close()
	trusted, err := n.Validators[0].Header(ctx, snapshot)
	if err != nil {
		return j, err
	}
	err = h.Configure(func(c *cfg.Config) {
		k.Edit(c)
		c.P2P.PersistentPeers = strings.Join(peers, ",")
		s := c.StateSync
		s.Enable, s.TrustHeight, s.TrustHash, s.DiscoveryTime = true, trusted.Height, fmt.Sprintf("%X", trusted.Hash), discovery
		if k.name == nameIAVLPausing {
			s.RPCServers = rpcs
		}
	})
	if err := errors.Join(err, network.CopyGenesis(n.Validators[0], h)); err != nil {
		return j, err
	}
	began := time.Now()
	if err := n.Run(h); err != nil {
		return j, err
	}
	defer n.Kill(h)
	var state runner.App
	err = runner.Poll(ctx, h.Name+" to have the state", func() bool {
		at, err := h.AppInfo(ctx)
		state = at
		return err == nil && at.Height > 0
	})
	if err != nil {
		return j, fmt.Errorf("%w\n%s", err, strings.Join(runner.Tail(h.Log(), 5), "\n"))
	}
	j.Seconds = time.Since(began).Seconds()
	j.AfterDiscoveryS = j.Seconds
	if k.name == nameIAVLPausing {
		j.AfterDiscoveryS -= discovery.Seconds()
	}
	if err := confirm(ctx, n.Validators[0], h.Name, state); err != nil {
		return j, err
	}
	values, err := h.Scrape(ctx)
	j.Bytes = values.Starling("statesync_bytes_verified") + int64(values["iavlnode_restored_bytes"])
	return j, err
}

// confirm compares the state of a node with a validator: with the header after it or, if there is
// none yet, with the validator's state.
func confirm(ctx context.Context, v *runner.Home, name string, state runner.App) error {
	var at runner.App
	err := runner.Poll(ctx, fmt.Sprintf("%s to have height %d", v.Name, state.Height), func() bool {
		newest, err := v.AppInfo(ctx)
		at = newest
		return err == nil && at.Height >= state.Height
	})
	if err != nil {
		return err
	}
	want := at.Hash
	if at.Height > state.Height {
		header, err := v.Header(ctx, state.Height+1)
		if err != nil {
			return err
		}
		want = header.AppHash
	}
	if !bytes.Equal(want, state.Hash) {
		return fmt.Errorf("%s has the app hash %X at height %d, the validators have %X", name, state.Hash, state.Height, want)
	}
	return nil
}

// delayed starts a relay between a new node and the validators, and returns their addresses on it.
func delayed(h *runner.Home, validators []*runner.Home, delay time.Duration) (relay *link.Relay, peers, rpcs []string, err error) {
	var hops []network.Hop
	for _, v := range validators {
		p2p, err := network.P2P(v, "")
		if err != nil {
			return nil, nil, nil, err
		}
		hops = append(hops, network.Hop{From: h, To: v, Target: p2p, Delay: delay, Transport: true},
			network.Hop{From: h, To: v, Target: strings.TrimPrefix(v.RPC(), "http://"), Delay: delay})
	}
	relay, at, err := network.Delay(hops)
	if err != nil {
		return nil, nil, nil, err
	}
	for i, v := range validators {
		peers, rpcs = append(peers, v.PeerAt(at[2*i])), append(rpcs, "http://"+at[2*i+1])
	}
	return relay, peers, rpcs, nil
}

// Print writes the table.
func (r *NewcomerResult) Print(out io.Writer) {
	cells := [][]string{{harness.Group(r.Keys) + " keys", "join, s", "after discovery, s", "MB"}}
	for _, j := range r.Joins {
		for _, side := range []struct {
			name  string
			joins []NewcomerJoin
		}{{nameIAVLPausing, j.IAVL}, {nameSnapshots, j.Starling}} {
			figure := func(format string, of func(NewcomerJoin) float64) string {
				return harness.MedianInterval(harness.Each(side.joins, of)).Text(format)
			}
			cells = append(cells, []string{
				fmt.Sprintf("%s, %d ms", side.name, j.DelayMS), figure("%.2f", func(j NewcomerJoin) float64 { return j.Seconds }),
				figure("%.2f", func(j NewcomerJoin) float64 { return j.AfterDiscoveryS }),
				fmt.Sprintf("%.1f", harness.MedianOf(side.joins, func(j NewcomerJoin) float64 { return float64(j.Bytes) / 1e6 })),
			})
		}
		cells = append(cells, []string{"  " + nameIAVLPausing + " over " + nameSnapshots, j.Ratio.Text("%.2f") + " ×", j.AfterDiscovery.Text("%.2f") + " ×", ""})
	}
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, `
%s, new networks each time; medians, with the interval of the median (of fewer than six rounds: the least and the greatest)
join                from the start of the process until it answers with the height and the hash of the state, which the network confirms
iavl-pausing        bench/iavlnode joins by CometBFT's state sync, which first discovers snapshots for %v, and connects meanwhile: the
                    second column is without that. Its light client asks the validators' RPC servers
starling-snapshots  starlingd joins from all validators over TLS
Byzantine           %d of the validators. IAVL's offers a false state as the newest snapshot: only its end shows that, and the node
                    restores another one. Starling's sends damaged chunks, which are fetched again
chunks              of at most %s bytes
ms                  delay between the new node and each of %s, one way, by a relay; all share one machine without further traffic
Load average before the run: %.1f
`, harness.Count(r.Rounds, "round"), discovery, r.Lying, harness.Group(r.ChunkBytes), harness.Count(r.Validators, "validator"), r.Machine.Load)
}
