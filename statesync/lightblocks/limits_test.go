package lightblocks

import (
	"bytes"
	"context"
	"encoding/binary"
	"runtime"
	"testing"

	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/protowalk"
	"github.com/starling-kv/starling/statesync/lightclient"
	"github.com/starling-kv/starling/transport"
)

// allocated returns how many bytes f allocates.
func allocated(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// nested returns a field that holds content, in fields that hold each other: the last number is
// that of the innermost.
func nested(content []byte, numbers ...int) []byte {
	for i := len(numbers) - 1; i >= 0; i-- {
		b := binary.AppendUvarint(nil, uint64(numbers[i])<<3|2)
		content = append(binary.AppendUvarint(b, uint64(len(content))), content...)
	}
	return content
}

// endless returns a body of less than limit bytes that repeats element as often as fits, in fields
// that hold each other.
func endless(limit int, element []byte, numbers ...int) []byte {
	return nested(bytes.Repeat(element, (limit-64)/len(element)), numbers...)
}

// hostile are bodies of the greatest length that ask a decoder for as many elements as they can.
// Each is decoded by all of the decoders.
func hostile(t *testing.T) map[string][]byte {
	t.Helper()
	c := sharedChain(chainOptions{heights: 12, validators: 4, turnover: 5})
	val, err := c.blocks[5].ValidatorSet.Validators[0].ToProto()
	require.NoError(t, err)
	validator, err := val.Marshal()
	require.NoError(t, err)
	nobody := types.NewCommitSigAbsent()
	absent, err := nobody.ToProto().Marshal()
	require.NoError(t, err)
	require.Len(t, absent, leastSignature)
	require.GreaterOrEqual(t, len(validator), leastValidator)
	empty := nested(nil, 4)
	lightBlock := func(b []byte) []byte { return nested(b, 2, 1) } // as evidence
	bodies := map[string][]byte{
		"two million empty signatures":  endless(MaxLightBlock, empty, 1, 2),
		"absent signatures":             endless(MaxLightBlock, nested(absent, 4), 1, 2),
		"empty validators":              endless(MaxLightBlock, nested(nil, 1), 2),
		"validators":                    endless(MaxLightBlock, nested(validator, 1), 2),
		"empty proposers":               endless(MaxLightBlock, nested(nil, 2), 2),
		"empty headers":                 endless(MaxLightBlock, nested(nil, 1), 1),
		"empty commits":                 endless(MaxLightBlock, nested(nil, 2), 1),
		"signed headers":                endless(MaxLightBlock, nested(nil, 1)),
		"validator sets":                endless(MaxLightBlock, nested(nil, 2)),
		"evidence: empty signatures":    lightBlock(endless(MaxEvidence-8, empty, 1, 2)),
		"evidence: absent signatures":   lightBlock(endless(MaxEvidence-8, nested(absent, 4), 1, 2)),
		"evidence: validators":          lightBlock(endless(MaxEvidence-8, nested(validator, 1), 2)),
		"evidence: byzantine":           endless(MaxEvidence, nested(validator, 3), 2),
		"evidence: empty byzantine":     endless(MaxEvidence, nested(nil, 3), 2),
		"evidence: pieces":              endless(MaxEvidence, nested(nil, 2)),
		"evidence: duplicate votes":     endless(MaxEvidence, nested(nil, 1)),
		"evidence: votes":               endless(MaxEvidence, nested(nil, 1), 1),
		"params: types of keys":         endless(MaxParams, nested(nil, 1), 3),
		"params: blocks":                endless(MaxParams, nested(nil, 1)),
		"params: many of another field": endless(MaxParams, nested(nil, 77)),
	}
	part := func(b []byte) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }
	for name, signatures := range map[string][]byte{"empty": empty, "absent": nested(absent, 4)} {
		header := endless(MaxLightBlock-8, signatures, 2)
		bodies["headers: "+name+" signatures"] = append(part(header), part(nil)...)
	}
	header, err := c.blocks[5].SignedHeader.ToProto().Marshal()
	require.NoError(t, err)
	bodies["headers: empty evidence"] = append(part(header), part(endless(MaxLightBlock-len(header)-16, nested(nil, 1)))...)
	bodies["headers: empty parts"] = make([]byte, MaxLightBlock)
	return bodies
}

// A decoder makes a hundred bytes out of an element of two. None is begun with more elements than
// there can be.
func TestDecodingCostsNoMoreThanWhatCame(t *testing.T) {
	const times, constant = 4, 256 << 10
	for name, body := range hostile(t) {
		t.Run(name, func(t *testing.T) {
			require.LessOrEqual(t, len(body), MaxLightBlock)
			for decoder, decode := range map[string]func() error{
				"light block": func() error { _, err := decodeLightBlock(body, testChain, 0); return err },
				"headers":     func() error { _, err := decodeHeaders(body, testChain, 6, MaxHeaders); return err },
				"params":      func() error { _, err := decodeParams(body); return err },
				"evidence":    func() error { _, err := decodeEvidence(body); return err },
			} {
				var err error
				spent := allocated(func() { err = decode() })
				require.Error(t, err, decoder)
				require.LessOrEqual(t, spent, times*len(body)+constant, "the decoder of %s, for %d bytes", decoder, len(body))
			}
		})
	}
}

// A Byzantine peer can make a node allocate no more than CometBFT's largest validator set does.
func TestLargestHonestAnswersAreDecoded(t *testing.T) {
	const times = 16
	largest := largestLightBlock(t)
	body, err := encodeLightBlock(largest)
	require.NoError(t, err)
	spent := allocated(func() { _, err = decodeLightBlock(body, testChain, largest.Height) })
	require.NotErrorIs(t, err, protowalk.ErrTooMany)
	require.NotErrorIs(t, err, protowalk.ErrMalformed)
	t.Logf("a light block of %d validators: %d bytes, %d allocated", largest.ValidatorSet.Size(), len(body), spent)
	require.LessOrEqual(t, spent, times*len(body))

	headers, err := appendHeader(nil, Ancestor{SignedHeader: largest.SignedHeader})
	require.NoError(t, err)
	spent = allocated(func() { _, err = decodeHeaders(headers, testChain, largest.Height, 1) })
	require.NotErrorIs(t, err, protowalk.ErrTooMany)
	require.NotErrorIs(t, err, protowalk.ErrMalformed)
	t.Logf("its header: %d bytes, %d allocated", len(headers), spent)
	require.LessOrEqual(t, spent, times*len(headers))
}

// Long messages are decoded one at a time, and short ones in parallel with them.
func TestLongMessagesAreDecodedOneAtATime(t *testing.T) {
	for _, test := range []struct {
		length int
		alone  bool
	}{{100, false}, {shortMessage, false}, {shortMessage + 2, true}, {MaxLightBlock, true}} {
		body := bytes.Repeat([]byte{15 << 3, 1}, test.length/2) // of an unknown number
		alone := false
		require.NoError(t, walked(body, &lightBlockTable, func() error {
			if alone = !long.TryLock(); !alone {
				long.Unlock()
			}
			return nil
		}))
		require.Equal(t, test.alone, alone, "%d bytes", len(body))
	}
}

func TestSignaturesBelongToValidators(t *testing.T) {
	c := sharedChain(chainOptions{heights: 12, validators: 4, turnover: 5})
	lb := copyBlock(c.blocks[5])
	lb.Commit.Signatures = append(lb.Commit.Signatures, lb.Commit.Signatures[0])
	body, err := encodeLightBlock(lb)
	require.NoError(t, err)
	_, err = decodeLightBlock(body, testChain, lb.Height)
	require.ErrorContains(t, err, "5 signatures of 4 validators")
	ev := newEvidence(lb, c.blocks[5], c.blocks[4])
	body, err = encodeEvidence(ev)
	require.NoError(t, err)
	_, err = decodeEvidence(body)
	require.ErrorContains(t, err, "5 signatures of 4 validators")
}

// A report is not decoded before there is a place for it.
func TestReportsAreDecodedOneAtATime(t *testing.T) {
	c := sharedChain(chainOptions{heights: 12, validators: 4, turnover: 5})
	entered, leave := make(chan struct{}), make(chan struct{})
	var mux transport.Mux
	s := NewServer(ServerOptions{ChainID: testChain, Blocks: c, States: c, Evidence: func(types.Evidence) error {
		entered <- struct{}{}
		<-leave
		return nil
	}})
	s.Register(&mux)
	body, err := encodeEvidence(testEvidence(t))
	require.NoError(t, err)
	request := func(body []byte) error {
		_, err := mux.Serve(context.Background(), transport.Request{Method: MethodEvidence, Body: body})
		return err
	}
	first := make(chan error)
	go func() { first <- request(body) }()
	<-entered
	require.ErrorIs(t, request([]byte("not evidence")), transport.ErrBusy, "it is not looked at")
	close(leave)
	require.NoError(t, <-first)
	require.ErrorIs(t, request([]byte("not evidence")), transport.ErrRefused)
}

// FuzzTables: what CometBFT makes of a body that the tables accept is no larger than they say, and
// what CometBFT encodes is accepted.
func FuzzTables(f *testing.F) {
	c := sharedChain(chainOptions{heights: 12, validators: 4, turnover: 5})
	for _, lb := range c.blocks[3:6] {
		body, err := encodeLightBlock(lb)
		require.NoError(f, err)
		f.Add(body)
	}
	body, err := encodeEvidence(testEvidence(f))
	require.NoError(f, err)
	f.Add(body)
	f.Add(nested(nil, 1, 2, 4))
	f.Fuzz(func(t *testing.T, body []byte) {
		if protowalk.Walk(body, &lightBlockTable) == nil {
			var pb cmtproto.LightBlock
			if err := pb.Unmarshal(body); err != nil {
				return
			}
			signatures, validators := 0, 0
			if pb.SignedHeader != nil && pb.SignedHeader.Commit != nil {
				signatures = len(pb.SignedHeader.Commit.Signatures)
			}
			if pb.ValidatorSet != nil {
				validators = len(pb.ValidatorSet.Validators)
			}
			require.LessOrEqual(t, signatures, validators)
			require.LessOrEqual(t, signatures*(2+leastSignature)+validators*(2+leastValidator), len(body))
		}
		if lb, err := decodeLightBlock(body, testChain, 0); err == nil && lightclient.CheckCommit(lb) == nil {
			again, err := encodeLightBlock(lb)
			require.NoError(t, err)
			require.NoError(t, protowalk.Walk(again, &lightBlockTable))
		}
	})
}
