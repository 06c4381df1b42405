package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/transport"
)

const (
	// DefaultBagBytes limits a bag where no limit is configured.
	DefaultBagBytes = 8 << 20
	// MaxUpperDepth limits an upper tree: 65,536 nodes are more than a validator has use for.
	MaxUpperDepth = 16
	// wantBytes is about what a want of one key opens.
	wantBytes = 1 << 10
	// nodeBytes is about what an upper node takes.
	nodeBytes = 128
)

// Refused makes an error one that the peer is told as such.
func Refused(err error) error { return fmt.Errorf("%w: %w", transport.ErrRefused, err) }

// Places returns making, or if it is nil as many places as there are processors but one: answers
// that take long to make must not take the last one from blocks.
func Places(making chan struct{}) chan struct{} {
	if making != nil {
		return making
	}
	return make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1))
}

// Costly registers a method whose answers take a place in making while they are made. f gets the
// body of a request; weigh is transport.Weigher's.
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

// DecodeWitness decodes a request, which must want something. The error is transport.ErrRefused.
func DecodeWitness(body []byte) (dsm.Witness, error) {
	w, err := dsm.DecodeWitness(body)
	if err == nil && len(w.Wants) == 0 {
		err = errors.New("a witness of nothing")
	}
	if err != nil {
		return w, Refused(err)
	}
	return w, nil
}

// Bag answers a request from a state, of whose keys those in r are looked through for next keys. An
// answer without any byte says that less is to be asked for at once: the bag would have more than
// limit bytes, or than the request allows. partly: what v lacks stays a stub; otherwise it is an
// error.
func Bag(v *avlstar.Version, r avlstar.KeyRange, w dsm.Witness, limit int, partly bool) ([]byte, error) {
	wants, err := wantsOf(v, r, w.Wants, partly)
	if err != nil {
		return nil, err
	}
	below := avlstar.Below{Depth: int(w.Depth), Held: make(map[avlstar.Hash]avlstar.Span, len(w.Held)), MaxBytes: int(min(int64(w.MaxBytes), int64(limit))), Partly: partly}
	for _, h := range w.Held {
		below.Held[h] = avlstar.Span{}
	}
	bag, err := v.Bag(wants, below)
	switch {
	case errors.Is(err, avlstar.ErrBagTooLarge) || err == nil && len(bag) > below.MaxBytes:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return bag, nil
}

// wantsOf returns the wants as the tree knows them. The next key is looked for in r; where there is
// none, or the way to it is missing, the way to the key itself shows where to ask further.
func wantsOf(v *avlstar.Version, r avlstar.KeyRange, wants []dsm.Want, partly bool) ([]avlstar.Want, error) {
	within := dsm.Range{First: r.First, After: r.After}
	all := make([]avlstar.Want, 0, len(wants))
	for _, w := range wants {
		want := avlstar.Want{Key: w.Key, Range: w.Range, After: w.After, Deleted: w.Deleted}
		if above := w.Least(); w.Next && within.Contains(above) {
			next, err := least(v, avlstar.KeyRange{First: above, After: r.After})
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

// least returns a copy of the least key of a range; nil: it has none.
func least(v *avlstar.Version, r avlstar.KeyRange) ([]byte, error) {
	for kv, err := range v.Ascend(r.First, r.After) {
		return bytes.Clone(kv.Key), err
	}
	return nil, nil
}

// WeighWitness returns about how many bytes are made to answer: a want opens a way of about a
// kilobyte, a range of keys as much as the answer may have.
func WeighWitness(r transport.Request, limit int) int64 {
	asked := dsm.WitnessAsks(r.Body)
	most := min(int64(asked.MaxBytes), int64(limit))
	if asked.Ranges {
		return most
	}
	return min(most, int64(asked.Wants)*wantBytes)
}

// DecodeUpper decodes a request for an upper tree. The error is transport.ErrRefused.
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

// maxUpperBytes limits an upper tree: with 16 levels it has 65,536 stubs, of about 70 bytes where
// keys are short.
const maxUpperBytes = 6 << 20

// UpperBag returns the upper nodes of a state. Where they take too much, since keys are long or
// leaves have few nodes above them, it has fewer levels: what is left out can be fetched like
// anything else.
func UpperBag(v *avlstar.Version, depth int) ([]byte, error) {
	for {
		bag, err := v.UpperWithin(depth, maxUpperBytes)
		if !errors.Is(err, avlstar.ErrBagTooLarge) || depth <= 0 {
			return bag, err
		}
		depth -= 2
	}
}

// Upper answers a request for an upper tree from a state. What v lacks stays a stub.
func Upper(v *avlstar.Version, depth int) ([]byte, error) {
	bag, err := UpperBag(v, depth)
	if err != nil {
		return nil, err
	}
	return dsm.Upper{Commitment: v.Commitment().Encode(), Bag: bag}.Encode(), nil
}

// WeighUpper returns about how many bytes are made to answer.
func WeighUpper(r transport.Request) int64 {
	u, err := DecodeUpper(r.Body)
	if err != nil {
		return 0
	}
	return nodeBytes << u.Depth
}
