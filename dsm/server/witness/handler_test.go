package witness_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server/witness"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/transport"
)

// states are versions by height.
type states map[int64]*avlstar.Version

func (s states) Version(height int64) (*avlstar.Version, bool) {
	v, ok := s[height]
	if ok {
		v.Retain()
	}
	return v, ok
}

func key(i int) []byte { return fmt.Appendf(nil, "%04d", i) }

// start returns the handler of a node that has the whole state after block 1, and of block 2 the
// keys below 0100 with their paths.
func start(t *testing.T, o witness.Options) (full, part *avlstar.Version, call func(method uint8, body []byte) ([]byte, error)) {
	t.Helper()
	empty, err := avlstar.Empty(512)
	require.NoError(t, err)
	var changes []avlstar.Change
	for i := range 400 {
		changes = append(changes, avlstar.Change{Key: key(i), Value: fmt.Appendf(nil, "value %d", i)})
	}
	full, err = empty.Apply(changes)
	require.NoError(t, err)
	empty.Release()
	p, err := full.Prune(func(s avlstar.Subtree) bool { return string(s.First) >= "0100" })
	require.NoError(t, err)
	part = p.Version()
	t.Cleanup(func() {
		full.Release()
		part.Release()
	})
	o.Versions = states{1: full, 2: part}
	mux := new(transport.Mux)
	witness.New(o).Register(mux)
	return full, part, func(method uint8, body []byte) ([]byte, error) {
		return mux.Serve(t.Context(), transport.Request{Peer: "asker", Method: transport.Method(method), Body: body})
	}
}

func encode(t *testing.T, w dsm.Witness) []byte {
	t.Helper()
	b, err := w.Encode()
	require.NoError(t, err)
	return b
}

func TestHandler(t *testing.T) {
	full, part, call := start(t, witness.Options{MaxMultiproofBytes: 4 << 10})
	ask := func(w dsm.Witness) []byte {
		t.Helper()
		b, err := call(dsm.MethodWitness, encode(t, w))
		require.NoError(t, err)
		return b
	}
	one := []avlstar.Want{{Key: key(7)}, {Key: key(8), Deleted: true}}
	want, err := full.Multiproof([]avlstar.Want{{Key: key(7)}, {Key: key(8), Deleted: true}}, avlstar.Below{Depth: 2})
	require.NoError(t, err)
	for height := range int64(2) {
		require.Equal(t, want, ask(dsm.Witness{Height: 1 + height, Depth: 2, MaxBytes: 1 << 20, Wants: one}))
	}
	require.Empty(t, ask(dsm.Witness{Height: 1, MaxBytes: 10, Wants: one}), "the requester must ask for less")
	require.Empty(t, ask(dsm.Witness{Height: 1, MaxBytes: 1 << 30, Wants: []avlstar.Want{{Range: true}}}), "more than the node allows")
	require.Empty(t, ask(dsm.Witness{Height: 1, Depth: 255, MaxBytes: 1 << 10, Wants: []avlstar.Want{{Range: true}}}), "a walk of everything")

	// Missing nodes stay stubs; available ones are returned.
	for _, next := range []bool{false, true} {
		b := ask(dsm.Witness{Height: 2, MaxBytes: 1 << 20, Wants: []avlstar.Want{{Key: key(7)}, {Key: key(300), Next: next}}})
		multiproof, err := avlstar.DecodeMultiproof(b)
		require.NoError(t, err)
		require.Equal(t, []avlstar.Stub{full.Commitment().Root}, multiproof.Roots())
		p, err := avlstar.NewPartial(full.Commitment())
		require.NoError(t, err)
		grafted, _, err := p.Graft(multiproof)
		require.NoError(t, err)
		_, ok, err := grafted.Get(key(7))
		require.NoError(t, err)
		require.True(t, ok)
		_, _, err = grafted.Get(key(300))
		var missing *avlstar.MissingNodeError
		require.ErrorAs(t, err, &missing)
		p.Release()
		grafted.Release()
	}

	for height, v := range map[int64]*avlstar.Version{1: full, 2: part} {
		b, err := call(dsm.MethodUpper, dsm.UpperRequest{Height: height, Depth: 5}.Encode())
		require.NoError(t, err)
		u, err := dsm.DecodeUpper(b)
		require.NoError(t, err)
		require.Equal(t, full.Commitment().Encode(), u.Commitment)
		multiproof, err := v.Upper(5)
		require.NoError(t, err)
		require.Equal(t, multiproof, u.Multiproof)
	}
}

func TestHandlerRefuses(t *testing.T) {
	_, _, call := start(t, witness.Options{})
	one := []avlstar.Want{{Key: key(7)}}
	for name, c := range map[string]struct {
		method uint8
		body   []byte
		want   error
	}{
		"no such height":       {dsm.MethodWitness, encode(t, dsm.Witness{Height: 3, MaxBytes: 1, Wants: one}), transport.ErrGone},
		"nothing wanted":       {dsm.MethodWitness, encode(t, dsm.Witness{Height: 1, MaxBytes: 1}), transport.ErrRefused},
		"no request":           {dsm.MethodWitness, []byte("?"), transport.ErrRefused},
		"no such upper tree":   {dsm.MethodUpper, dsm.UpperRequest{Height: 3, Depth: 1}.Encode(), transport.ErrGone},
		"too deep":             {dsm.MethodUpper, dsm.UpperRequest{Height: 1, Depth: 17}.Encode(), transport.ErrRefused},
		"no request for upper": {dsm.MethodUpper, []byte("?"), transport.ErrRefused},
	} {
		_, err := call(c.method, c.body)
		require.ErrorIs(t, err, c.want, name)
	}
}

// Expensive answers wait for a slot, and stop waiting when their context ends.
func TestHandlerTakesPlaces(t *testing.T) {
	making := make(chan struct{}, 1)
	making <- struct{}{}
	mux := new(transport.Mux)
	witness.New(witness.Options{Versions: states{}, Making: making}).Register(mux)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := transport.Request{Method: dsm.MethodWitness, Body: encode(t, dsm.Witness{Height: 1, MaxBytes: 1, Wants: []avlstar.Want{{Key: key(1)}}})}
	_, err := mux.Serve(ctx, r)
	require.ErrorIs(t, err, context.Canceled)
	<-making
	_, err = mux.Serve(t.Context(), r)
	require.ErrorIs(t, err, transport.ErrGone)
}

// slowUppers takes a tenth of a second to look for height 2.
type slowUppers struct{ states }

func (s slowUppers) Version(height int64) (*avlstar.Version, bool) {
	if height == 2 {
		bubble.Sleep(100 * time.Millisecond)
	}
	return s.states.Version(height)
}

// Upper trees hold no slot of witnesses, and take at most a quarter of a processor, however many
// peers ask for them.
func TestUppersRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		making := make(chan struct{}, 1)
		mux := new(transport.Mux)
		witness.New(witness.Options{Versions: slowUppers{states{}}, Making: making}).Register(mux)
		var answers atomic.Int32
		// An upper tree takes 100 ms, and its slot rests for 300 ms, so one begins every 400 ms.
		// None begins when the askers stop.
		ctx, cancel := context.WithTimeout(t.Context(), 9900*time.Millisecond)
		defer cancel()
		var askers sync.WaitGroup
		for range 4 {
			askers.Go(func() {
				for ctx.Err() == nil {
					_, err := mux.Serve(ctx, transport.Request{Method: dsm.MethodUpper, Body: dsm.UpperRequest{Height: 2, Depth: 16}.Encode()})
					if errors.Is(err, transport.ErrGone) {
						answers.Add(1)
					}
				}
			})
		}
		for range 50 {
			<-time.After(70 * time.Millisecond)
			began := time.Now()
			_, err := mux.Serve(ctx, transport.Request{Method: dsm.MethodWitness, Body: encode(t, dsm.Witness{Height: 1, MaxBytes: 1, Wants: []avlstar.Want{{Key: key(1)}}})})
			require.ErrorIs(t, err, transport.ErrGone)
			require.Zero(t, time.Since(began))
		}
		askers.Wait()
		require.EqualValues(t, 25, answers.Load())
	})
}

func TestWeights(t *testing.T) {
	weigh := func(w dsm.Witness) int64 { return witness.WeighWitness(transport.Request{Body: encode(t, w)}, 1<<20) }
	two := []avlstar.Want{{Key: key(7)}, {Key: key(8)}}
	require.Equal(t, int64(2<<10), weigh(dsm.Witness{Height: 1, MaxBytes: 1 << 30, Wants: two}))
	require.Equal(t, int64(100), weigh(dsm.Witness{Height: 1, MaxBytes: 100, Wants: two}))
	require.Equal(t, int64(1<<20), weigh(dsm.Witness{Height: 1, MaxBytes: 1 << 30, Wants: []avlstar.Want{{Range: true}}}))
	require.Equal(t, int64(1<<20), weigh(dsm.Witness{Height: 1, MaxBytes: 1 << 30, Wants: []avlstar.Want{{Range: true, After: key(7)}, {Key: key(8)}}}), "a range is not the last want")
	require.Zero(t, witness.WeighWitness(transport.Request{Body: []byte("?")}, 1<<20))
	require.Equal(t, int64(128<<12), witness.WeighUpper(transport.Request{Body: dsm.UpperRequest{Height: 1, Depth: 12}.Encode()}))
	require.Zero(t, witness.WeighUpper(transport.Request{Body: dsm.UpperRequest{Height: 1, Depth: 17}.Encode()}))
}

// An upper tree has a size limit: it has fewer levels if large leaves lie near the root.
func TestUpperOfLargeValues(t *testing.T) {
	v, err := avlstar.Empty(avlstar.DefaultChunkBytes)
	require.NoError(t, err)
	var changes []avlstar.Change
	for i := range 300 {
		changes = append(changes, avlstar.Change{Key: fmt.Appendf(nil, "key %03d", i), Value: make([]byte, 64<<10)})
	}
	full, err := v.Apply(changes)
	require.NoError(t, err)
	b, err := witness.Upper(full, witness.MaxUpperDepth)
	require.NoError(t, err)
	require.Less(t, len(b), 7<<20)
	u, err := dsm.DecodeUpper(b)
	require.NoError(t, err)
	want, err := full.Upper(8) // the leaves are at 8 and 9
	require.NoError(t, err)
	require.Equal(t, want, u.Multiproof)
}
