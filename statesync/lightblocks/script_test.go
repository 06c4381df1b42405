package lightblocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/cometbft/cometbft/light/provider"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/transport"
)

// The scripts of testdata/verifier run under synctest's clock, so the times in them are exact. Each
// peer takes slightly longer than the one before.
//
//	chain [heights=200] [validators=5] [turnover=4]      the true chain; one block a second, the last ten seconds old
//	trust [height=1] [period=..] [clock=-1h] [hash=wrong]
//	peers                                                each line a name and a behaviour; see newPeer
//	newest | lightblock H | apphash H | state H | commit H [timeout=..]
//	remove NAME
//
// An answer is followed by the time that it took, the peers that lied, and the peers that got
// evidence.
func TestVerifierScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/verifier", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			s := &script{t: t}
			datadriven.RunTest(t, path, s.run)
			if s.v != nil {
				s.v.Close()
			}
		})
	})
}

type script struct {
	t     *testing.T
	chain *chain
	v     *Verifier
	dir   string
	peers []*testPeer
	mu    struct {
		sync.Mutex
		lied []string
	}
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	arg := func(name string, value any) {
		if d.HasArg(name) {
			d.ScanArgs(t, name, value)
		}
	}
	timeout := "1m"
	arg("timeout", &timeout)
	limit, err := time.ParseDuration(timeout)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	began := time.Now()
	var result string
	height := func() int64 {
		var h int64
		_, err := fmt.Sscan(d.CmdArgs[0].Key, &h)
		require.NoError(t, err)
		return h
	}
	switch d.Cmd {
	case "chain":
		o := chainOptions{heights: 200, validators: 5, turnover: 4}
		var heights, turnover int
		arg("heights", &heights)
		arg("validators", &o.validators)
		if heights > 0 {
			o.heights = int64(heights)
		}
		if d.HasArg("turnover") {
			arg("turnover", &turnover)
			o.turnover = int64(turnover)
		}
		s.chain = sharedChain(o)
		return ""
	case "trust":
		trust := 1
		arg("height", &trust)
		s.dir = t.TempDir()
		s.peers, s.mu.lied = nil, nil
		if s.v != nil {
			s.v.Close()
		}
		s.v = testVerifier(t, s.chain, int64(trust), func(o *Options) {
			var period, clock, hash string
			arg("period", &period)
			arg("clock", &clock)
			arg("hash", &hash)
			if period != "" {
				o.TrustPeriod, err = time.ParseDuration(period)
				require.NoError(t, err)
			}
			if clock != "" {
				off, err := time.ParseDuration(clock)
				require.NoError(t, err)
				o.now = func() time.Time { return time.Now().Add(off) }
			}
			if hash == "wrong" {
				o.TrustHash = sum("something else")
			}
			o.EvidenceDir = s.dir
			o.Lied = func(id transport.ID, err error) {
				require.Error(t, err)
				s.mu.Lock()
				defer s.mu.Unlock()
				s.mu.lied = append(s.mu.lied, string(id))
			}
		})
		return ""
	case "peers":
		for line := range strings.Lines(d.Input) {
			words := strings.Fields(line)
			p := s.peer(words[0], words[1], words[2:])
			n := time.Duration(len(s.peers))
			// so that no two answers come at the same instant
			p.latency = time.Millisecond + n*1037*time.Microsecond
			s.peers = append(s.peers, p)
			s.v.Add(p)
		}
		return ""
	case "remove":
		s.v.Remove(transport.ID(d.CmdArgs[0].Key))
		return ""
	case "newest":
		h, err := s.v.Newest(ctx)
		result = outcome(err, "%d", h)
	case "lightblock":
		lb, err := s.v.LightBlock(ctx, height())
		result = outcome(err, "%s", s.whose(lb))
	case "commit":
		commit, err := s.v.Commit(ctx, height())
		result = outcome(err, "")
		if err == nil {
			lb := s.chain.at(height())
			// panics over a wrong signature, as CometBFT does when it starts
			commit.ToVoteSet(testChain, lb.ValidatorSet)
			result = "whole"
		}
	case "apphash":
		hash, err := s.v.AppHash(ctx, height())
		result = outcome(err, "%t", string(hash) == string(sum("app %d", height())))
	case "state":
		state, err := s.v.State(ctx, height(), s.chain.genesis())
		result = outcome(err, "")
		if err == nil {
			result = s.checkState(height(), state.LastValidators, state.Validators, state.NextValidators)
		}
	default:
		t.Fatalf("unknown command %s", d.Cmd)
	}
	took := time.Since(began)
	synctest.Wait()
	if d.HasArg("later") { // what arrives after the answer
		bubble.Sleep(time.Minute)
		synctest.Wait()
	}
	return fmt.Sprintf("%s\nafter %v\n%s", result, took.Round(time.Millisecond), s.consequences())
}

var longHex = regexp.MustCompile(`[0-9A-F]{64,}`)

func outcome(err error, format string, args ...any) string {
	if err == nil {
		return fmt.Sprintf(format, args...)
	}
	var names []string
	for _, known := range []struct {
		err  error
		name string
	}{
		{ErrNoPeers, "no peers"}, {ErrUnavailable, "unavailable"}, {ErrTrustMismatch, "trust mismatch"}, {ErrTrustExpired, "trust expired"},
		{ErrFuture, "future"}, {ErrConflict, "conflict"}, {ErrClosed, "closed"}, {context.DeadlineExceeded, "deadline"},
	} {
		if errors.Is(err, known.err) {
			names = append(names, known.name)
		}
	}
	if errors.Is(err, ErrConflict) {
		return "error (conflict)" // which of the two was first is random
	}
	text := longHex.ReplaceAllStringFunc(err.Error(), func(hash string) string { return hash[:4] + "…" })
	return fmt.Sprintf("error (%s): %s", strings.Join(names, ", "), text)
}

func (s *script) whose(lb *types.LightBlock) string {
	if lb == nil {
		return ""
	}
	if string(s.chain.at(lb.Height).Hash()) == string(lb.Hash()) {
		return "true"
	}
	return "FALSE"
}

func (s *script) checkState(h int64, sets ...*types.ValidatorSet) string {
	for i, set := range sets {
		want := s.chain.at(h + int64(i)).ValidatorSet
		if string(set.Hash()) != string(want.Hash()) {
			return "FALSE validators"
		}
		if string(set.ProposerPriorityHash()) != string(want.ProposerPriorityHash()) {
			return "false priorities"
		}
	}
	return "true"
}

func (s *script) consequences() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	slices.Sort(s.mu.lied)
	if len(s.mu.lied) > 0 {
		fmt.Fprintf(&b, "lied: %s\n", strings.Join(s.mu.lied, " "))
	}
	var evidence []string
	for _, p := range s.peers {
		if n := len(p.reported()); n > 0 {
			evidence = append(evidence, fmt.Sprintf("%s %d", p.id, n))
		}
	}
	if len(evidence) > 0 {
		fmt.Fprintf(&b, "evidence: %s\n", strings.Join(evidence, ", "))
	}
	files, err := os.ReadDir(s.dir)
	require.NoError(s.t, err)
	if len(files) > 0 {
		fmt.Fprintf(&b, "files: %d\n", len(files))
	}
	s.mu.lied = nil
	return b.String()
}

// peer returns a peer with that behaviour. args are key=value, all of them numbers or durations.
func (s *script) peer(name, behaviour string, args []string) *testPeer {
	p := newPeer(transport.ID(name), s.chain, behaviour, func(key string) string {
		for _, a := range args {
			if k, v, _ := strings.Cut(a, "="); k == key {
				return v
			}
		}
		return ""
	})
	require.NotNil(s.t, p, behaviour)
	return p
}

// newPeer returns a peer with one of all behaviours, or nil if there is no such behaviour.
func newPeer(id transport.ID, c *chain, behaviour string, arg func(string) string) *testPeer {
	p := &testPeer{id: id, chain: c}
	number := func(key string) (n int64) {
		if arg(key) != "" {
			_, err := fmt.Sscan(arg(key), &n)
			mustDo(err)
		}
		return n
	}
	duration := func(key string) time.Duration {
		d, err := time.ParseDuration(arg(key))
		mustDo(err)
		return d
	}
	changed := func(change func(*types.LightBlock)) {
		p.lightBlock = func(_ context.Context, h int64) (*types.LightBlock, error) {
			lb, err := p.honest(h)
			if err == nil {
				change(lb)
			}
			return lb, err
		}
	}
	switch behaviour {
	case "honest":
	case "behind": // has only the heights up to at
		short := *c
		short.blocks = c.blocks[:number("at")]
		p.chain = &short
	case "pruned": // has only the heights from base
		short := *c
		short.base = number("base")
		p.chain = &short
	case "silent":
		p.lightBlock = func(ctx context.Context, _ int64) (*types.LightBlock, error) { return nil, hang(ctx) }
		p.params = func(ctx context.Context, _ int64) (types.ConsensusParams, error) {
			return types.ConsensusParams{}, hang(ctx)
		}
	case "slow": // answers late
		p.lightBlock = func(ctx context.Context, h int64) (*types.LightBlock, error) {
			if err := sleep.For(ctx, duration("by")); err != nil {
				return nil, err
			}
			return p.honest(h)
		}
	case "moody": // prompt with even heights, slow with odd ones
		p.lightBlock = func(ctx context.Context, h int64) (*types.LightBlock, error) {
			if h%2 == 1 {
				if err := sleep.For(ctx, 2*time.Second); err != nil {
					return nil, err
				}
			}
			return p.honest(h)
		}
	case "drip": // gives the newest block at once, all others slowly
		p.lightBlock = func(ctx context.Context, h int64) (*types.LightBlock, error) {
			if h != 0 && h != number("but") {
				if err := sleep.For(ctx, 9*time.Second); err != nil {
					return nil, err
				}
			}
			return p.honest(h)
		}
	case "busy": // refuses the first questions
		left := int(number("times"))
		var mu sync.Mutex
		p.lightBlock = func(_ context.Context, h int64) (*types.LightBlock, error) {
			mu.Lock()
			defer mu.Unlock()
			if left > 0 {
				left--
				return nil, provider.ErrNoResponse
			}
			return p.honest(h)
		}
	case "gone": // has nothing
		p.lightBlock = func(context.Context, int64) (*types.LightBlock, error) { return nil, provider.ErrLightBlockNotFound }
	case "withhold": // has only the newest, and the one at
		p.lightBlock = func(_ context.Context, h int64) (*types.LightBlock, error) {
			if h != 0 && h != number("at") {
				return nil, provider.ErrLightBlockNotFound
			}
			return p.honest(h)
		}
	case "broken":
		p.lightBlock = func(context.Context, int64) (*types.LightBlock, error) { return nil, transport.ErrClosed }
	case "garbage":
		p.lightBlock = func(context.Context, int64) (*types.LightBlock, error) {
			return nil, provider.ErrBadLightBlock{Reason: errors.New("garbage")}
		}
	case "panic":
		p.lightBlock = func(context.Context, int64) (*types.LightBlock, error) { panic("hostile") }
	case "nothing":
		p.lightBlock = func(context.Context, int64) (*types.LightBlock, error) { return nil, nil }
	case "otherheight":
		p.lightBlock = func(_ context.Context, h int64) (*types.LightBlock, error) { return p.honest(max(1, h-1)) }
	case "otherchain":
		changed(func(lb *types.LightBlock) {
			lb.ChainID = "another"
			lb.Commit.BlockID.Hash = lb.Hash()
		})
	case "unsigned": // an altered header, and the old commit adapted to it
		changed(func(lb *types.LightBlock) {
			lb.AppHash = sum("a lie")
			lb.Commit.BlockID.Hash = lb.Hash()
		})
	case "badsignature": // one wrong signature and enough right ones
		changed(func(lb *types.LightBlock) {
			signature := bytes.Clone(lb.Commit.Signatures[0].Signature)
			signature[7] ^= 1
			lb.Commit.Signatures[0].Signature = signature
		})
	case "ownfork": // a chain of other validators
		o := c.chainOptions
		o.salt = "own "
		p.chain = sharedChain(o)
	case "tallfork": // the same, claiming to be higher
		o := c.chainOptions
		o.salt, o.heights = "own ", o.heights+50
		p.chain = sharedChain(o)
	case "grafted": // the true chain up to at, then one of other validators
		o := c.chainOptions
		o.salt = "own "
		own := sharedChain(o)
		f := *c
		f.blocks = append(slices.Clone(c.blocks[:number("at")]), own.blocks[number("at"):]...)
		p.chain = &f
	case "cheat": // the true chain up to at, then a fork that the true validators signed as well
		p.chain = c.fork(number("at"))
	case "evasive": // a false block, and slow answers for what would prove it
		o := c.chainOptions
		o.salt = "own "
		p.chain = sharedChain(o)
		p.lightBlock = func(ctx context.Context, h int64) (*types.LightBlock, error) {
			if h >= number("at") {
				return p.honest(h)
			}
			if err := sleep.For(ctx, 9*time.Second); err != nil {
				return nil, err
			}
			return nil, provider.ErrLightBlockNotFound
		}
	case "oldnewest":
		p.lightBlock = func(_ context.Context, h int64) (*types.LightBlock, error) {
			if h == 0 {
				h = number("at")
			}
			return p.honest(h)
		}
	case "priorities": // consistently false, with true blocks
		sets := falsePriorities(c, number("by"))
		p.lightBlock = func(_ context.Context, h int64) (*types.LightBlock, error) {
			lb, err := p.honest(h)
			if err == nil {
				lb.ValidatorSet = sets[lb.Height-1].Copy()
			}
			return lb, err
		}
	case "wildpriorities":
		changed(func(lb *types.LightBlock) {
			lb.ValidatorSet.Validators[0].ProposerPriority = 1<<63 - 1
			lb.ValidatorSet.Validators[1].ProposerPriority = -1 << 63
		})
	default:
		return nil
	}
	return p
}

// falsePriorities gives the sets of a chain whose rotation begins elsewhere.
func falsePriorities(c *chain, by int64) []*types.ValidatorSet {
	set := c.blocks[0].ValidatorSet.Copy()
	set.Validators[0].ProposerPriority -= by
	set.Validators[1].ProposerPriority += by
	sets := []*types.ValidatorSet{set}
	for _, lb := range c.blocks[1:] {
		next, err := successor(set, lb.ValidatorSet)
		mustDo(err)
		sets, set = append(sets, next), next
	}
	return sets
}
