package witness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/transport"
)

const (
	// DefaultMultiproofBytes limits a multiproof if no limit is configured.
	DefaultMultiproofBytes = 8 << 20
	// MaxUpperDepth limits an upper tree: no validator needs more than 65,536 nodes.
	MaxUpperDepth = 16
	// wantBytes is the approximate size of what a want of one key opens.
	wantBytes = 1 << 10
	// nodeBytes is the approximate size of an upper node.
	nodeBytes = 128
	// AnswerBytes is what making one answer takes with the default limit: the answer, and what it
	// is made from.
	AnswerBytes = 2 * DefaultMultiproofBytes
)

// Refused wraps err so that the peer receives a refusal.
func Refused(err error) error { return fmt.Errorf("%w: %w", transport.ErrRefused, err) }

// Places returns making. If it is nil, it returns one slot for each processor but one, so that
// expensive answers leave a processor for blocks.
func Places(making chan struct{}) chan struct{} {
	if making != nil {
		return making
	}
	return make(chan struct{}, slots(runtime.GOMAXPROCS(0)))
}

func slots(processors int) int { return max(1, processors-1) }

// Budget returns what all answers that are being made at the same time take, in bytes: one in each
// slot of Places, and one in Rare's.
func Budget(processors int) int64 { return int64(slots(processors)+1) * AnswerBytes }

// Costly registers a method whose answers are expensive: each holds a slot of making while it is
// computed. f gets the body of a request; weigh is transport.Weigher's.
func Costly(mux *transport.Mux, making chan struct{}, method uint8, f func(body []byte) ([]byte, error), weigh func(transport.Request) int64) {
	mux.Handle(transport.Method(method), transport.Weighed(transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
		select {
		case making <- struct{}{}:
			defer func() { <-making }()
			return f(r.Body)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}), weigh))
}

// restFactor is how many times longer Rare's slot rests than an answer took.
const restFactor = 3

// Rare returns a function that registers methods whose answers are expensive and seldom needed.
// They do not hold slots of making, because witnesses would wait for them. All of them share one
// slot, which rests after each answer, so they take at most a quarter of a processor, whoever asks.
func Rare(mux *transport.Mux) func(method uint8, f func(body []byte) ([]byte, error), weigh func(transport.Request) int64) {
	slot := make(chan struct{}, 1)
	return func(method uint8, f func(body []byte) ([]byte, error), weigh func(transport.Request) int64) {
		mux.Handle(transport.Method(method), transport.Weighed(transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
			select {
			case slot <- struct{}{}:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			began := time.Now()
			defer func() { time.AfterFunc(restFactor*time.Since(began), func() { <-slot }) }()
			return f(r.Body)
		}), weigh))
	}
}

// DecodeWitness decodes a request and refuses one without wants. The error wraps
// transport.ErrRefused.
func DecodeWitness(body []byte) (dsm.Witness, error) {
	w, err := dsm.DecodeWitness(body)
	if err == nil && len(w.Wants) == 0 {
		err = errors.New("a witness request without wants")
	}
	if err != nil {
		return w, Refused(err)
	}
	return w, nil
}

// Multiproof answers a request from a state that may be in any range. The answer is empty if the
// multiproof would exceed limit or the request's own limit; the requester must then ask for less at
// once. With partly, nodes that v does not have stay stubs; otherwise a missing node is an error.
func Multiproof(v *avlstar.Version, w dsm.Witness, limit int, partly bool) ([]byte, error) {
	return MultiproofOf([]Part{{avlstar.Share{Version: v}, w.Wants}}, w, limit, partly)
}

// Part is what a range contributes to an answer.
type Part struct {
	avlstar.Share
	Wants []avlstar.Want // those of the request that the range has
}

// MultiproofOf does what Multiproof does, from the ranges that have the wants of the request, in
// order. Next keys are searched in the range only.
func MultiproofOf(parts []Part, w dsm.Witness, limit int, partly bool) ([]byte, error) {
	shares, wants := make([]avlstar.Share, len(parts)), make([]avlstar.Want, 0, len(w.Wants))
	for i, p := range parts {
		var err error
		if wants, err = p.appendWants(wants, partly); err != nil {
			return nil, err
		}
		shares[i] = p.Share
	}
	below := avlstar.Below{Depth: int(w.Depth), Held: make(map[avlstar.Hash]avlstar.Span, len(w.Held)), MaxBytes: int(min(int64(w.MaxBytes), int64(limit))), Partly: partly}
	for _, h := range w.Held {
		below.Held[h] = avlstar.Span{}
	}
	multiproof, err := avlstar.MultiproofOf(shares, wants, below)
	switch {
	case errors.Is(err, avlstar.ErrMultiproofTooLarge) || err == nil && len(multiproof) > below.MaxBytes:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return multiproof, nil
}

// appendWants translates the wants for the tree and appends them to all. A next key is searched in
// the range. If there is none, or if the path to it is missing, the path to the key itself shows
// the requester where to continue.
func (p Part) appendWants(all []avlstar.Want, partly bool) ([]avlstar.Want, error) {
	for _, w := range p.Wants {
		want := avlstar.Want{Key: w.Key, Range: w.Range, After: w.After, Deleted: w.Deleted, Written: w.Written}
		if above := w.Least(); w.Next && p.Range.Contains(above) {
			next, err := least(p.Version, avlstar.KeyRange{First: above, After: p.Range.After})
			var missing *avlstar.MissingNodeError
			switch {
			case partly && errors.As(err, &missing):
			case err != nil:
				return nil, err
			case next != nil:
				want.Key = next
			}
		}
		all = append(all, want)
	}
	return all, nil
}

// least returns a copy of the least key in a range, or nil if the range is empty.
func least(v *avlstar.Version, r avlstar.KeyRange) ([]byte, error) {
	for kv, err := range v.Ascend(r.First, r.After) {
		return bytes.Clone(kv.Key), err
	}
	return nil, nil
}

// WeighWitness estimates the size of an answer in bytes: a want opens a path of about a kilobyte,
// and a key range may fill the whole answer.
func WeighWitness(r transport.Request, limit int) int64 {
	asked := dsm.WitnessAsks(r.Body)
	most := min(int64(asked.MaxBytes), int64(limit))
	if asked.Ranges {
		return most
	}
	return min(most, int64(asked.Wants)*wantBytes)
}

// DecodeUpper decodes a request for an upper tree. The error wraps transport.ErrRefused.
func DecodeUpper(body []byte) (dsm.UpperRequest, error) {
	u, err := dsm.DecodeUpperRequest(body)
	if err == nil && u.Depth > MaxUpperDepth {
		err = fmt.Errorf("depth %d, the limit is %d", u.Depth, MaxUpperDepth)
	}
	if err != nil {
		return u, Refused(err)
	}
	return u, nil
}

// maxUpperBytes limits an upper tree: 16 levels have 65,536 stubs of about 70 bytes each with short
// keys.
const maxUpperBytes = 6 << 20

// Upper answers a request for an upper tree from a state. Nodes that v does not have stay stubs.
func Upper(v *avlstar.Version, depth int) ([]byte, error) {
	return UpperOf([]avlstar.Share{{Version: v}}, depth)
}

// UpperOf does what Upper does, from several ranges of a state. If the upper tree is too large,
// because keys are long or leaves are near the root, it has fewer levels. The requester can fetch
// the rest like any other part.
func UpperOf(shares []avlstar.Share, depth int) ([]byte, error) {
	for {
		multiproof, err := avlstar.UpperOf(shares, depth, maxUpperBytes)
		switch {
		case err == nil:
			return dsm.Upper{Commitment: shares[0].Version.Commitment().Encode(), Multiproof: multiproof}.Encode(), nil
		case !errors.Is(err, avlstar.ErrMultiproofTooLarge) || depth <= 0:
			return nil, err
		}
		depth -= 2
	}
}

// WeighUpper estimates the size of an answer in bytes.
func WeighUpper(r transport.Request) int64 {
	u, err := DecodeUpper(r.Body)
	if err != nil {
		return 0
	}
	return nodeBytes << u.Depth
}
