package lightblocks

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/evidence"
	cmtjson "github.com/cometbft/cometbft/libs/json"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/statesync/lightclient"
	"github.com/starling-kv/starling/transport"
)

// lunatic returns a chain that forks from the true one with a block that could not be derived
// there: three of the five validators, more than a third, sign for a set that includes strangers.
func (c *chain) lunatic(at int64) *chain {
	f := *c
	f.blocks, f.keys = slices.Clone(c.blocks), maps.Clone(c.keys)
	var members []*types.Validator
	for _, val := range c.at(at).ValidatorSet.Validators[:3] {
		members = append(members, types.NewValidator(val.PubKey, val.VotingPower))
	}
	for _, name := range []string{"stranger 1", "stranger 2"} {
		key := testKey(name)
		f.keys[string(key.PubKey().Address())] = key
		members = append(members, types.NewValidator(key.PubKey(), 10))
	}
	set := types.NewValidatorSet(members)
	for h := at; h <= c.heights; h++ {
		next := set.CopyIncrementProposerPriority(1)
		f.blocks[h-1] = f.makeBlock(h, set, next, f.blocks[h-2].Commit.BlockID, " lunatic")
		set = next
	}
	return &f
}

// The full nodes of each chain would accept the evidence against the other one.
func TestEvidenceConvinces(t *testing.T) {
	c := sharedChain(chainOptions{heights: 60, validators: 5, turnover: 9})
	for name, other := range map[string]*chain{"equivocation": c.fork(40), "lunatic": c.lunatic(40)} {
		for _, late := range []time.Duration{10 * time.Microsecond, 2 * time.Millisecond, 400 * time.Millisecond} {
			testEvidenceConvinces(t, fmt.Sprintf("%s %v", name, late), c, other, late)
		}
	}
}

func testEvidenceConvinces(t *testing.T, name string, c, other *chain, late time.Duration) {
	t.Run(name, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "evidence")
		one, two := &testPeer{id: "one", chain: c, latency: time.Millisecond}, &testPeer{id: "two", chain: other, latency: late}
		synctest.Test(t, func(t *testing.T) {
			v := testVerifier(t, c, 5, func(o *Options) {
				o.EvidenceDir = dir
				o.Lied = func(id transport.ID, err error) { t.Errorf("%s was blamed: %v", id, err) }
			})
			v.Add(one)
			v.Add(two)
			_, err := v.LightBlock(context.Background(), 55)
			require.ErrorIs(t, err, ErrConflict)
			require.ErrorContains(t, err, "one")
			require.ErrorContains(t, err, "two")
			require.Equal(t, err, v.Conflict())
			_, err = v.State(context.Background(), 50, c.genesis())
			require.ErrorIs(t, err, ErrConflict)
			synctest.Wait()
		})
		for _, p := range []*testPeer{one, two} {
			taken := 0
			for _, ev := range p.reported() {
				if convinces(p.chain, ev.(*types.LightClientAttackEvidence)) {
					taken++
				}
			}
			require.Equal(t, 1, taken, "evidence that %s takes", p.id)
		}

		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, files, 1)
		info, err := files[0].Info()
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode())
		text, err := os.ReadFile(filepath.Join(dir, files[0].Name()))
		require.NoError(t, err)
		var kept keptEvidence
		require.NoError(t, json.Unmarshal(text, &kept))
		require.Equal(t, testChain, kept.ChainID)
		require.Len(t, kept.Evidence, 2)
		var ev types.LightClientAttackEvidence
		require.NoError(t, cmtjson.Unmarshal(kept.Evidence[1], &ev))
		require.True(t, convinces(c, &ev) || convinces(other, &ev))

		require.NoError(t, Evidence(t.TempDir()))
		err = Evidence(dir)
		require.ErrorIs(t, err, ErrConflict)
		require.ErrorContains(t, err, fmt.Sprintf("peers %s and %s sent different blocks on ", kept.Peers[0], kept.Peers[1]))
		require.ErrorContains(t, err, files[0].Name())
	})
}

// convinces returns the verdict of CometBFT's evidence pool in a node on that chain
// (evidence/verify.go).
func convinces(c *chain, ev *types.LightClientAttackEvidence) bool {
	if ev.ValidateBasic() != nil {
		return false
	}
	common, trusted := c.at(ev.CommonHeight), c.at(ev.ConflictingBlock.Height)
	return evidence.VerifyLightClientAttack(ev, common.SignedHeader, trusted.SignedHeader, common.ValidatorSet, chainEnd, lightclient.DefaultTrustPeriod) == nil
}

// A wrong signature after enough right ones would make every node refuse the evidence.
func TestWrongSignaturesDoNotSpoilEvidence(t *testing.T) {
	c := sharedChain(chainOptions{heights: 60, validators: 5, turnover: 9})
	other := c.fork(40)
	for i, lb := range other.blocks[39:] {
		lb = copyBlock(lb)
		lb.Commit.Signatures[4].Signature = make([]byte, 64)
		other.blocks[39+i] = lb
	}
	one, two := &testPeer{id: "one", chain: c, latency: time.Millisecond}, &testPeer{id: "two", chain: other, latency: 500 * time.Millisecond}
	synctest.Test(t, func(t *testing.T) {
		v := testVerifier(t, c, 5, nil)
		v.Add(one)
		v.Add(two)
		_, err := v.LightBlock(context.Background(), 55)
		require.ErrorIs(t, err, ErrConflict)
		synctest.Wait()
	})
	taken := 0
	for _, ev := range one.reported() {
		if convinces(c, ev.(*types.LightClientAttackEvidence)) {
			taken++
		}
	}
	require.Equal(t, 1, taken)
}

// Reports are sent again to a busy peer, one at a time. Close gives them some time to arrive,
// because a node that detects an attack ends its join at once.
func TestReportsAreRetried(t *testing.T) {
	c := sharedChain(chainOptions{heights: 60, validators: 5, turnover: 9})
	for name, test := range map[string]struct {
		answers []error // to the first reports; then nil
		want    int     // reports that arrive, of two
		calls   int
		took    time.Duration // of Close
	}{
		"taken":               {nil, 2, 2, 0},
		"busy, twice":         {[]error{transport.ErrBusy, transport.ErrBusy}, 2, 4, time.Second},
		"busy, then no store": {[]error{transport.ErrBusy, transport.ErrBusy, transport.ErrGone, transport.ErrFailed}, 2, 6, 3 * time.Second},
		"silent, once":        {[]error{context.DeadlineExceeded}, 2, 3, time.Second},
		"refused":             {[]error{transport.ErrRefused}, 1, 2, 0},
		"gone for good":       {[]error{transport.ErrClosed, transport.ErrClosed}, 0, 2, 0},
		"busy for good":       {slices.Repeat([]error{transport.ErrBusy}, 100), 0, 6, reportGrace},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				one, two := &testPeer{id: "one", chain: c, latency: time.Millisecond}, &testPeer{id: "two", chain: c.fork(40), latency: 2 * time.Millisecond}
				busy := &reluctant{testPeer: &testPeer{id: "busy", chain: c, latency: 3 * time.Millisecond}, answers: test.answers}
				v := testVerifier(t, c, 5, nil)
				for _, p := range []Peer{one, two, busy} {
					v.Add(p)
				}
				_, err := v.LightBlock(context.Background(), 55)
				require.ErrorIs(t, err, ErrConflict)
				began := time.Now()
				v.Close()
				require.Equal(t, test.took, time.Since(began))
				require.Len(t, busy.reported(), test.want)
				require.Equal(t, test.calls, busy.calls)
				require.Len(t, one.reported(), 2)
			})
		})
	}
}

// reluctant answers the first reports with errors.
type reluctant struct {
	*testPeer
	answers []error
	calls   int // of ReportEvidence, one after the other
}

func (p *reluctant) ReportEvidence(ctx context.Context, ev types.Evidence) error {
	if p.calls++; p.calls <= len(p.answers) {
		return fmt.Errorf("report: %w", p.answers[p.calls-1])
	}
	return p.testPeer.ReportEvidence(ctx, ev)
}
