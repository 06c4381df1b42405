package catchup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
)

// ask requests blocks from a server that has them.
func ask(t testing.TB, blocks Blocks, body []byte) ([]byte, error) {
	s := NewServer(nil)
	s.SetBlocks(blocks)
	mux := new(transport.Mux)
	s.Register(mux)
	return mux.Serve(t.Context(), transport.Request{Peer: "peer", Method: MethodBlocks, Body: body})
}

func TestBlocksAreServed(t *testing.T) {
	c := newBlocks("a", 20, 1000)
	r := request{3, 5, 1 << 20}
	answer, err := ask(t, c, r.encode())
	require.NoError(t, err)
	blocks, err := decodeAnswer(testChain, r, answer, MaxBlocks)
	require.NoError(t, err)
	require.Len(t, blocks, 5)
	for i, b := range blocks {
		require.Equal(t, c.blocks[2+i].ID, b.ID)
		require.NoError(t, c.set.VerifyCommit(testChain, b.ID, b.Height, b.Commit))
	}

	// the last block has no canonical commit yet
	r.from = 18
	answer, err = ask(t, c, r.encode())
	require.NoError(t, err)
	blocks, err = decodeAnswer(testChain, r, answer, MaxBlocks)
	require.NoError(t, err)
	require.Len(t, blocks, 2)
	for _, height := range []int64{20, 21, 1 << 40} {
		_, err = ask(t, c, request{height, 1, 1 << 20}.encode())
		require.ErrorIs(t, err, transport.ErrGone)
	}
	c.base = 5
	_, err = ask(t, c, request{4, 1, 1 << 20}.encode())
	require.ErrorIs(t, err, transport.ErrGone)
	_, err = ask(t, nil, request{4, 1, 1 << 20}.encode())
	require.ErrorIs(t, err, transport.ErrGone)
}

func TestAnswersKeepToTheirLimit(t *testing.T) {
	c := newBlocks("a", 8, 50_000)
	r := request{1, 8, 210_000}
	answer, err := ask(t, c, r.encode())
	require.NoError(t, err)
	require.LessOrEqual(t, len(answer), r.limit)
	blocks, err := decodeAnswer(testChain, r, answer, MaxBlocks)
	require.NoError(t, err)
	require.Len(t, blocks, 4)

	// A block that does not fit: the answer reports its length only.
	c = newBlocks("a", 2, 100_000)
	r = request{1, 1, minBytes}
	answer, err = ask(t, c, r.encode())
	require.NoError(t, err)
	needed, says, err := decodeNeed(r, answer)
	require.NoError(t, err)
	require.True(t, says)
	r.limit = needed
	answer, err = ask(t, c, r.encode())
	require.NoError(t, err)
	require.Len(t, answer, needed)
	blocks, err = decodeAnswer(testChain, r, answer, MaxBlocks)
	require.NoError(t, err)
	require.Len(t, blocks, 1)
}

func TestRequestsAreBounded(t *testing.T) {
	for _, r := range []request{{0, 1, minBytes}, {-1, 1, minBytes}, {1, 0, minBytes}, {1, MaxBlocks + 1, minBytes}, {1, 1, minBytes - 1}, {1, 1, MaxBytes + 1}} {
		_, err := ask(t, newBlocks("a", 2, 10), r.encode())
		require.ErrorIs(t, err, transport.ErrRefused, "%+v", r)
	}
	_, err := ask(t, newBlocks("a", 2, 10), append(request{1, 1, minBytes}.encode(), 0))
	require.ErrorIs(t, err, transport.ErrRefused)
}

// A node with a damaged disk fails instead of sending invalid blocks.
func TestDamagedBlocksAreNotServed(t *testing.T) {
	c := newBlocks("a", 3, 1000)
	c.blocks[1].Parts.GetPart(0).Bytes[700] ^= 1
	_, err := ask(t, c, request{1, 3, minBytes}.encode())
	require.ErrorContains(t, err, "own block 2 is damaged")
	require.False(t, errors.Is(err, transport.ErrGone))
}

// An answer with any byte changed is refused, or a commit does not prove its block.
func TestAlteredAnswers(t *testing.T) {
	c := newBlocks("a", 4, 40)
	r := request{1, 2, minBytes}
	answer, err := ask(t, c, r.encode())
	require.NoError(t, err)
	for i := range answer {
		altered := bytes.Clone(answer)
		altered[i] ^= 1
		blocks, err := decodeAnswer(testChain, r, altered, MaxBlocks)
		if err != nil {
			continue
		}
		proved := true
		for _, b := range blocks {
			proved = proved && c.set.VerifyCommit(testChain, b.ID, b.Height, b.Commit) == nil
		}
		require.False(t, proved, "byte %d", i)
	}
	for i := range answer {
		_, err := decodeAnswer(testChain, r, answer[:i], MaxBlocks)
		require.Error(t, err, "the first %d bytes", i)
	}
}

func TestAnswersOfLiars(t *testing.T) {
	c, other := newBlocks("a", 9, 40), newBlocks("b", 9, 40)
	r := request{3, 3, minBytes}
	answerOf := func(c *testBlocks, r request) []byte {
		answer, err := ask(t, c, r.encode())
		require.NoError(t, err)
		return answer
	}
	for name, lie := range map[string][]byte{
		"other heights":    answerOf(c, request{4, 3, minBytes}),
		"more blocks":      answerOf(c, request{3, 4, minBytes}),
		"nothing":          {},
		"no blocks":        {0, 0},
		"bytes afterwards": append(answerOf(c, r), 0),
		"a long part":      {0, 1, 255, 255, 255, 255, 1},
	} {
		_, err := decodeAnswer(testChain, r, lie, MaxBlocks)
		require.Error(t, err, name)
	}
	_, err := decodeAnswer("another-chain", r, answerOf(c, r), MaxBlocks)
	require.ErrorContains(t, err, "of chain")

	// blocks of two chains, each with its own commit
	mixed := binary.BigEndian.AppendUint16(nil, 2)
	for _, b := range []Block{c.blocks[2], other.blocks[3]} {
		raw, err := b.ToProto()
		require.NoError(t, err)
		encoded, err := raw.Marshal()
		require.NoError(t, err)
		mixed = appendPart(mixed, encoded)
	}
	commit, err := other.blocks[3].Commit.ToProto().Marshal()
	require.NoError(t, err)
	_, err = decodeAnswer(testChain, r, appendPart(mixed, commit), MaxBlocks)
	require.ErrorContains(t, err, "the commit that follows block 3")

	for _, needed := range []int{0, minBytes, MaxBytes + 1} {
		_, says, err := decodeNeed(r, needAnswer(needed))
		require.True(t, says)
		require.Error(t, err, "%d", needed)
	}
}

// FuzzAnswer decodes arbitrary answers: no panic, and accepted blocks are linked.
func FuzzAnswer(f *testing.F) {
	c := newBlocks("a", 4, 40)
	r := request{1, 3, minBytes}
	answer, err := ask(f, c, r.encode())
	require.NoError(f, err)
	f.Add(answer)
	f.Add(needAnswer(100_000))
	f.Fuzz(func(t *testing.T, answer []byte) {
		if _, says, _ := decodeNeed(r, answer); says {
			return
		}
		blocks, err := decodeAnswer(testChain, r, answer, MaxBlocks)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(blocks), r.count)
		for i, b := range blocks {
			require.Equal(t, r.from+int64(i), b.Height)
			require.True(t, b.Commit.BlockID.Equals(b.ID))
			require.Equal(t, types.BlockID{Hash: b.Hash(), PartSetHeader: b.Parts.Header()}, b.ID)
		}
	})
}

// FuzzRequest sends arbitrary requests: a successful answer is what was requested.
func FuzzRequest(f *testing.F) {
	c := newBlocks("a", 6, 40)
	f.Add(request{1, 3, minBytes}.encode())
	f.Add(request{5, 1, MaxBytes}.encode())
	f.Fuzz(func(t *testing.T, body []byte) {
		answer, err := ask(t, c, body)
		if err != nil {
			require.True(t, errors.Is(err, transport.ErrRefused) || errors.Is(err, transport.ErrGone), "%v", err)
			return
		}
		r, err := decodeRequest(body)
		require.NoError(t, err)
		require.LessOrEqual(t, len(answer), r.limit)
		_, err = decodeAnswer(testChain, r, answer, MaxBlocks)
		require.NoError(t, err)
	})
}
