package statesync

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/datadriven"
	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

// script runs the files in testdata/scripts against one joiner:
//
//	tree keys=N limit=B [seed=S]     the honest state; prints its number of chunks
//	offer [CHANGES]                  offers its snapshot at height 20 with changes, applied in order, and prints the answer:
//	    height=N format=N chunks=N apphash=BYTES   other values
//	    shift=N            moves N bytes from metadata to hash; if N < 0, from hash to metadata
//	    digits=N           moves the last N digits of chunks to the hash; if N < 0, the first bytes of the hash to chunks
//	    flip=hash|metadata flips a bit of the field
//	    cut=N add=N        shortens or lengthens metadata
//	    interval=N         the joiner's interval
//	apply                            one presented chunk per line: INDEX SENDER good|flip|short|long|empty|of:OTHER
//	                                 prints the answers; a verdict follows its answer, except for the last chunk
//	state                            prints what the target holds
type script struct {
	t      *testing.T
	v      *avlstar.Version
	chunks [][]byte
	m      *Manager
	target *fakeTarget
	gate   sync.RWMutex // locked: the pool is paused
}

func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{t: t}
		s.m, s.target = joiner(t, 2)
		s.m.opts.beforeVerify = func() {
			s.gate.RLock()
			defer s.gate.RUnlock()
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t, s.target.t = t, t
			switch d.Cmd {
			case "tree":
				return s.tree(d)
			case "offer":
				return s.offer(d)
			case "apply":
				return s.apply(d)
			case "state":
				return s.state()
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

func (s *script) tree(d *datadriven.TestData) string {
	var n int
	var limit, seed uint64
	var hash string
	d.ScanArgs(s.t, "keys", &n)
	d.ScanArgs(s.t, "limit", &limit)
	d.MaybeScanArgs(s.t, "seed", &seed)
	d.MaybeScanArgs(s.t, "hash", &hash)
	for {
		s.v = randomTree(s.t, rand.New(rand.NewPCG(seed, 0)), n, limit)
		if h := s.v.AppHash(); bytes.HasPrefix(h[:], []byte(hash)) {
			break
		}
		seed++ // until the app hash has the requested prefix
	}
	s.chunks = chunksOf(s.t, s.v)
	return fmt.Sprintf("%d chunks\n", len(s.chunks))
}

func (s *script) offer(d *datadriven.TestData) string {
	req := offerOf(s.t, serverOf(s.t, s.v, 20))
	snap := req.Snapshot
	snap.Hash, snap.Metadata = bytes.Clone(snap.Hash), bytes.Clone(snap.Metadata)
	s.m.SetInterval(interval)
	for _, arg := range d.CmdArgs {
		value := arg.Vals[0]
		n, _ := strconv.ParseInt(value, 10, 64)
		switch arg.Key {
		case "height":
			snap.Height = uint64(n)
		case "format":
			snap.Format = uint32(n)
		case "chunks":
			snap.Chunks = uint32(n)
		case "apphash":
			req.AppHash = []byte(value)
		case "interval":
			s.m.SetInterval(n)
		case "shift":
			joined := slices.Concat(snap.Hash, snap.Metadata)
			snap.Hash, snap.Metadata = joined[:len(snap.Hash)+int(n)], joined[len(snap.Hash)+int(n):]
		case "digits":
			digits := strconv.Itoa(int(snap.Chunks))
			joined := append([]byte(digits), snap.Hash...)
			at := len(digits) - int(n)
			moved, err := strconv.ParseUint(string(joined[:at]), 10, 32)
			require.NoError(s.t, err, "the hash does not begin with digits")
			snap.Chunks, snap.Hash = uint32(moved), joined[at:]
		case "flip":
			field := map[string][]byte{"hash": snap.Hash, "metadata": snap.Metadata}[value]
			field[len(field)/2] ^= 1
		case "cut":
			snap.Metadata = snap.Metadata[:len(snap.Metadata)-int(n)]
		case "add":
			snap.Metadata = append(snap.Metadata, make([]byte, n)...)
		default:
			d.Fatalf(s.t, "unknown change %s", arg.Key)
		}
	}
	return offer(s.t, s.m, req).String() + "\n"
}

func (s *script) apply(d *datadriven.TestData) string {
	var out strings.Builder
	for line := range strings.Lines(d.Input) {
		f := strings.Fields(line)
		k, err := strconv.ParseUint(f[0], 10, 32)
		require.NoError(s.t, err)
		var data []byte
		if k < uint64(len(s.chunks)) {
			data = bytes.Clone(s.chunks[k])
		}
		switch what, other, _ := strings.Cut(f[2], ":"); what {
		case "good":
		case "flip":
			data[len(data)/2] ^= 1
		case "short":
			data = data[:len(data)-1]
		case "long":
			data = append(data, 0)
		case "empty":
			data = []byte{}
		case "of":
			n, err := strconv.Atoi(other)
			require.NoError(s.t, err)
			data = bytes.Clone(s.chunks[n])
		default:
			d.Fatalf(s.t, "unknown chunk %s", what)
		}
		sender := f[1]
		if sender == "-" {
			sender = ""
		}
		resp := s.present(uint32(k), data, sender)
		fmt.Fprintf(&out, "%d: %s", k, resp.Result)
		if len(resp.RefetchChunks) > 0 {
			fmt.Fprintf(&out, " refetch %v", resp.RefetchChunks)
		}
		if len(resp.RejectSenders) > 0 {
			fmt.Fprintf(&out, " reject %v", resp.RejectSenders)
		}
		out.WriteString("\n")
		if resp.Result == abci.ResponseApplySnapshotChunk_ACCEPT {
			s.m.settle()
		}
	}
	return out.String()
}

func (s *script) state() string {
	s.target.mu.Lock()
	defer s.target.mu.Unlock()
	switch {
	case s.target.mu.version == nil && s.target.mu.restoring:
		return "restoring\n"
	case s.target.mu.version == nil:
		return "empty\n"
	}
	require.Equal(s.t, s.v.AppHash(), s.target.mu.version.AppHash())
	return fmt.Sprintf("height %d\n", s.target.mu.height)
}

// present pauses the pool until the answer is returned, unless the answer waits for the pool.
func (s *script) present(k uint32, data []byte, sender string) *abci.ResponseApplySnapshotChunk {
	if !s.isLast(k) {
		s.gate.Lock()
		defer s.gate.Unlock()
	}
	return apply(s.t, s.m, k, data, sender)
}

// isLast reports whether every chunk will have been presented once k is.
func (s *script) isLast(k uint32) bool {
	s.m.receiving.Lock()
	defer s.m.receiving.Unlock()
	session := s.m.receiving.session
	if session == nil {
		return false
	}
	session.mu.Lock()
	defer session.mu.Unlock()
	for i := range session.mu.chunks {
		if uint32(i) != k && !session.mu.chunks[i].presented {
			return false
		}
	}
	return true
}
