package liar_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	cmtversion "github.com/cometbft/cometbft/proto/tendermint/version"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/e2e/byzantine/liar"
	"github.com/starling-kv/starling/transport"
)

const pieceLimit = avlstar.MinCutBytes

// serves answers as an honest node does, from two snapshots.
type serves map[uint64]*avlstar.Version

func twoSnapshots(t *testing.T, leaves int, chunkBytes uint64) serves {
	t.Helper()
	old := treeOf(t, leaves, chunkBytes).version
	var changes []avlstar.Change
	for i := range leaves {
		changes = append(changes, avlstar.Change{Key: fmt.Appendf(nil, "key-%04d", i), Value: fmt.Appendf(nil, "new value %d", i)})
	}
	recent, err := old.Apply(changes)
	require.NoError(t, err)
	return serves{10: old, 20: recent}
}

func (s serves) Serve(_ context.Context, r transport.Request) ([]byte, error) {
	if r.Method == liar.MethodStatus {
		b := binary.BigEndian.AppendUint64([]byte{1}, 1)
		b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint64(b, 25), 2)
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, 10), 20), nil
	}
	height := binary.BigEndian.Uint64(r.Body)
	if r.Method == liar.MethodLightBlock {
		if height > 25 {
			return nil, transport.ErrGone
		}
		return lightBlock(int64(height)).Marshal()
	}
	switch r.Method {
	case liar.MethodWitness, liar.MethodUpper, liar.MethodOutline:
		height = 10 * ((height + 9) / 10) // 11 to 19 have the state of 20
	}
	version, ok := s[height]
	if !ok {
		return nil, transport.ErrGone
	}
	switch r.Method {
	case liar.MethodCommitment:
		c, err := version.Manifest().Commitment()
		return c.Encode(), err
	case liar.MethodManifest:
		return version.Manifest().Encode(), nil
	case liar.MethodWitness, liar.MethodUpper, liar.MethodOutline: // any bytes of the state
		return version.Multiproof([]avlstar.Want{{Key: []byte("key-0042")}}, avlstar.Below{})
	}
	k := binary.BigEndian.Uint32(r.Body[8:])
	if k >= version.NumChunks() {
		return nil, transport.ErrRefused
	}
	chunk, err := version.Chunk(k)
	if err != nil {
		return nil, err
	}
	if r.Method == liar.MethodSubManifest {
		loaded, err := version.Manifest().VerifyChunk(k, chunk)
		if err != nil {
			return nil, err
		}
		cut, err := loaded.Cut(pieceLimit)
		if err != nil {
			return nil, err
		}
		return cut.Manifest().Encode(), nil
	}
	from, n := binary.BigEndian.Uint32(r.Body[12:]), binary.BigEndian.Uint32(r.Body[16:])
	if uint64(from)+uint64(n) > uint64(len(chunk)) {
		return nil, transport.ErrRefused
	}
	return chunk[from : from+n : from+n], nil
}

func lightBlock(height int64) *cmtproto.LightBlock {
	return &cmtproto.LightBlock{SignedHeader: &cmtproto.SignedHeader{Header: &cmtproto.Header{
		Version: cmtversion.Consensus{Block: 11}, ChainID: "chain", Height: height, AppHash: make([]byte, 32),
	}}}
}

func about(method transport.Method, height uint64, more ...uint32) transport.Request {
	body := binary.BigEndian.AppendUint64(nil, height)
	for _, n := range more {
		body = binary.BigEndian.AppendUint32(body, n)
	}
	return transport.Request{Peer: "joiner", Method: method, Body: body}
}

// silent are the modes in which some answer never comes, or is "I do not have it".
var silent = map[liar.Mode]bool{liar.Withhold: true, liar.Gone: true, liar.Slow: true, liar.Drip: true, liar.Last: true}

// No chunk, range of a chunk, or sub-manifest that the Byzantine node serves over the transport may
// pass, whatever the mode and the seed.
func TestNothingServedOverTheTransportPasses(t *testing.T) {
	for _, c := range []struct {
		leaves     int
		chunkBytes uint64
	}{{1, 300}, {2, 300}, {60, 300}, {1000, 4 * pieceLimit}} {
		honest := twoSnapshots(t, c.leaves, c.chunkBytes)
		for _, mode := range liar.Serving() {
			require.Equal(t, !silent[mode], mode.Provable(), mode)
			if silent[mode] {
				continue
			}
			for seed := range uint64(7) {
				reported := 0
				server := liar.Over(mode, seed, func(l liar.Lie) {
					require.NotEqual(t, liar.Mix, l.How)
					require.EqualValues(t, "joiner", l.To)
					reported++
				})(honest)
				asked := 0
				ask := func(r transport.Request) []byte {
					asked++
					b, err := server.Serve(t.Context(), r)
					require.NoError(t, err)
					require.LessOrEqual(t, reported, asked)
					return b
				}
				for height, version := range honest {
					m := version.Manifest()
					for k, e := range m.Entries {
						n := uint32(e.Root.Bytes)
						what := fmt.Sprintf("%s, seed %d, chunk %d of %d", mode, seed, k, len(m.Entries))
						_, err := m.VerifyChunk(uint32(k), ask(about(liar.MethodChunk, height, uint32(k), 0, n)))
						require.ErrorIs(t, err, avlstar.ErrInvalidChunk, what)
						truth, err := version.Chunk(uint32(k))
						require.NoError(t, err)
						half := n / 2
						if b := ask(about(liar.MethodChunk, height, uint32(k), half, n-half)); half > 0 {
							require.NotEqual(t, truth[half:], b, what)
						}
						if e.Root.Bytes > pieceLimit {
							_, err = avlstar.VerifySubManifest(ask(about(liar.MethodSubManifest, height, uint32(k), pieceLimit)), e.Root, pieceLimit)
							require.Error(t, err, what)
						}
						_, err = m.VerifyChunk(uint32(k), truth)
						require.NoError(t, err, "the honest bytes are unchanged")
					}
				}
				require.Equal(t, asked, reported, "every invalid response is reported")
			}
		}
	}
}

// Other responses are invalid if the mode says so, and correct otherwise.
func TestLiesAboutSnapshots(t *testing.T) {
	honest := twoSnapshots(t, 100, 300)
	for _, mode := range liar.Serving() {
		if silent[mode] {
			continue
		}
		for seed := range uint64(7) {
			server := liar.Over(mode, seed, nil)(honest)
			for height, version := range honest {
				b, err := server.Serve(t.Context(), about(liar.MethodCommitment, height))
				require.NoError(t, err)
				c, err := avlstar.DecodeCommitment(b)
				require.Equal(t, mode != liar.Commitment && mode != liar.Stale, err == nil && c.AppHash() == version.AppHash(), "%s, seed %d", mode, seed)
				b, err = server.Serve(t.Context(), about(liar.MethodManifest, height))
				require.NoError(t, err)
				_, err = avlstar.VerifyManifest(b, version.AppHash())
				require.Equal(t, mode != liar.Manifest && mode != liar.Stale, err == nil, "%s, seed %d: %v", mode, seed, err)
			}
		}
	}
}

func TestLiesAboutTheStatus(t *testing.T) {
	honest := twoSnapshots(t, 1, 300)
	ask := about(liar.MethodStatus, 0)
	truth, err := honest.Serve(t.Context(), ask)
	require.NoError(t, err)
	for _, mode := range liar.Serving() {
		b, err := liar.Over(mode, 1, nil)(honest).Serve(t.Context(), ask)
		require.NoError(t, err)
		switch mode {
		case liar.Status:
			require.Len(t, b, len(truth)-1)
		case liar.Lone, liar.Future:
			require.Len(t, b, len(truth)+8)
			require.EqualValues(t, 3, binary.BigEndian.Uint16(b[17:]))
			require.EqualValues(t, map[liar.Mode]int{liar.Lone: 21, liar.Future: 1_000_000_020}[mode], binary.BigEndian.Uint64(b[len(truth):]))
		default:
			require.Equal(t, truth, b, "an honest status: else no joiner would ask this peer for chunks (%s)", mode)
		}
	}
}

func TestLiesAboutHeaders(t *testing.T) {
	honest := twoSnapshots(t, 1, 300)
	for height := uint64(2); height < 8; height++ {
		ask := about(liar.MethodLightBlock, height)
		truth, err := honest.Serve(t.Context(), ask)
		require.NoError(t, err)
		b, err := liar.Over(liar.Mix, 1, nil)(honest).Serve(t.Context(), ask)
		require.NoError(t, err)
		require.Equal(t, truth, b)
		b, err = liar.Over(liar.Header, 1, nil)(honest).Serve(t.Context(), ask)
		require.NoError(t, err)
		var lie cmtproto.LightBlock
		if err := lie.Unmarshal(b); err == nil {
			wrong := lie.SignedHeader.Header
			require.True(t, wrong.Height != int64(height) || wrong.AppHash[0] != 0, "height %d", height)
		}
	}
	// A request for the newest block names no height, so nothing can be proved.
	b, err := liar.Over(liar.Header, 1, nil)(honest).Serve(t.Context(), about(liar.MethodLightBlock, 0))
	require.NoError(t, err)
	truth, err := honest.Serve(t.Context(), about(liar.MethodLightBlock, 0))
	require.NoError(t, err)
	require.Equal(t, truth, b)
}

func TestEquivocation(t *testing.T) {
	honest := twoSnapshots(t, 100, 300)
	server := liar.Over(liar.Equivocate, 1, nil)(honest)
	e := honest[10].Manifest().Entries[1]
	answers := map[string]bool{}
	for i := range 20 {
		r := about(liar.MethodChunk, 10, 1, 0, uint32(e.Root.Bytes))
		r.Peer = transport.ID(fmt.Sprint("peer ", i))
		b, err := server.Serve(t.Context(), r)
		require.NoError(t, err)
		again, err := server.Serve(t.Context(), r)
		require.NoError(t, err)
		require.Equal(t, b, again, "the same peer gets the same answer")
		answers[string(b)] = true
	}
	require.Greater(t, len(answers), 2)
}

// Parts of a sharded state: no false answer is the correct one, and each is reported.
func TestLiesAboutTheState(t *testing.T) {
	honest := twoSnapshots(t, 100, 300)
	for _, mode := range liar.Serving() {
		for seed := range uint64(7) {
			reported := 0
			server := liar.Over(mode, seed, func(l liar.Lie) {
				require.NotEqual(t, liar.Mix, l.How)
				reported++
			})(honest)
			for _, method := range []transport.Method{liar.MethodWitness, liar.MethodUpper, liar.MethodOutline} {
				ask := about(method, 11)
				if mode == liar.Withhold || mode == liar.Slow {
					continue // see TestSilenceOverTheTransport
				}
				truth, err := honest.Serve(t.Context(), ask)
				require.NoError(t, err)
				b, err := server.Serve(t.Context(), ask)
				switch mode {
				case liar.Gone:
					require.ErrorIs(t, err, transport.ErrGone)
					reported--
				case liar.Drip, liar.Last:
					require.Equal(t, truth, b)
				default:
					require.NotEqual(t, truth, b, "%s, seed %d", mode, seed)
					require.Equal(t, 1, reported)
					reported--
				}
			}
			require.Zero(t, reported)
		}
	}
}

// A call that is never answered ends with the caller's time-out, and a late answer arrives.
func TestSilenceOverTheTransport(t *testing.T) {
	honest := twoSnapshots(t, 100, 300)
	m := honest[10].Manifest()
	last := uint32(len(m.Entries) - 1)
	chunk := func(k uint32) transport.Request {
		return about(liar.MethodChunk, 10, k, 0, uint32(m.Entries[k].Root.Bytes))
	}
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			mode  liar.Mode
			ask   transport.Request
			err   error
			least time.Duration
		}{
			{liar.Withhold, chunk(3), context.DeadlineExceeded, time.Minute},
			{liar.Withhold, about(liar.MethodManifest, 10), context.DeadlineExceeded, time.Minute},
			{liar.Gone, chunk(3), transport.ErrGone, 0},
			{liar.Last, chunk(last - 1), nil, 0},
			{liar.Last, chunk(last), context.DeadlineExceeded, time.Minute},
			{liar.Slow, chunk(3), nil, 2 * time.Second},
			{liar.Withhold, about(liar.MethodWitness, 10), context.DeadlineExceeded, time.Minute},
			{liar.Slow, about(liar.MethodUpper, 10), nil, 2 * time.Second},
			{liar.Drip, chunk(3), nil, 0},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			began := time.Now()
			answer, err := liar.Over(c.mode, 1, nil)(honest).Serve(ctx, c.ask)
			require.ErrorIs(t, err, c.err, c.mode)
			require.GreaterOrEqual(t, time.Since(began), c.least, c.mode)
			if c.err == nil {
				truth, err := honest.Serve(ctx, c.ask)
				require.NoError(t, err)
				require.Equal(t, truth, answer, c.mode)
			}
			cancel()
		}
	})
}
