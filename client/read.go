package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/proto/tendermint/crypto"

	"github.com/starling-kv/starling/avlstar"
)

// DefaultRangeLimit is the number of entries of a page unless the caller sets Limit.
const DefaultRangeLimit = 1000

// State identifies the state that an answer is from.
type State struct {
	Height   int64 // the state after this block
	Verified bool  // the proof leads to a header that is trusted; the fields below are set
	AppHash  avlstar.Hash
	Time     time.Time // of header Height+1, which holds AppHash: it shows how old the answer is
}

// Value is the result of a read of one key.
type Value struct {
	State
	Key   []byte
	Value []byte // nil where not Found
	Found bool
	Proof *avlstar.Proof // where asked for, or verified
}

// Page is one part of a range.
type Page struct {
	State
	Entries []avlstar.KV
	Next    []byte // start of the next page; nil: that was the last
	Proof   *avlstar.RangeProof
}

// ReadOption changes how to read.
type ReadOption func(*readOptions)

type readOptions struct {
	height  int64
	prove   bool
	believe bool
	limit   int
}

// AtHeight reads the state after this block, which the node must still keep.
func AtHeight(height int64) ReadOption { return func(o *readOptions) { o.height = height } }

// Prove requests the proof even if this client does not verify it.
func Prove() ReadOption { return func(o *readOptions) { o.prove = true } }

// Unverified trusts the node for this read.
func Unverified() ReadOption { return func(o *readOptions) { o.believe = true } }

// Limit sets the maximum number of entries of a page (DefaultRangeLimit). A node may return fewer.
func Limit(n int) ReadOption { return func(o *readOptions) { o.limit = n } }

// Get reads a key from the latest state, or that of AtHeight. With verification it waits for the
// header that proves the answer, which is that of the next block.
func (c *Client) Get(ctx context.Context, key []byte, options ...ReadOption) (*Value, error) {
	if len(key) < 1 || len(key) > avlstar.MaxKeyBytes {
		return nil, fmt.Errorf("client: a key has 1 to %d bytes, this one has %d", avlstar.MaxKeyBytes, len(key))
	}
	o := c.readOptions(options)
	v, state, err := read(ctx, c, query[*Value]{
		readOptions: o,
		path:        "/key",
		data:        key,
		decode:      func(a *abci.ResponseQuery) (*Value, proof, error) { return decodeValue(key, o, a) },
	})
	if err != nil {
		return nil, fmt.Errorf("key %q: %w", shorten(key), err)
	}
	v.State = state
	return v, nil
}

func decodeValue(key []byte, o readOptions, a *abci.ResponseQuery) (*Value, proof, error) {
	v := &Value{Key: key, Found: len(a.Value) > 0} // no value is empty
	if v.Found {
		v.Value = a.Value
	}
	if o.prove {
		state, simpleMap, err := splitProof(a.ProofOps, avlstar.OpState, key)
		if err != nil {
			return nil, nil, err
		}
		v.Proof = &avlstar.Proof{State: state, Map: simpleMap}
	}
	return v, func(appHash avlstar.Hash) error { return avlstar.VerifyProof(appHash, key, v.Value, *v.Proof) }, nil
}

// Range reads the keys in [start, end) in order; an empty bound is open. Verified pages are
// complete: nothing between two entries was left out.
func (c *Client) Range(ctx context.Context, start, end []byte, options ...ReadOption) (*Page, error) {
	if len(end) > 0 && bytes.Compare(start, end) >= 0 {
		return nil, errors.New("client: the range is empty: its start is not below its end")
	}
	o := c.readOptions(options)
	page, state, err := read(ctx, c, query[*Page]{
		readOptions: o,
		path:        "/range",
		data:        encodeRangeRequest(start, end, o.limit),
		decode:      func(a *abci.ResponseQuery) (*Page, proof, error) { return decodePage(start, end, o, a) },
	})
	if err != nil {
		return nil, fmt.Errorf("range from %q: %w", shorten(start), err)
	}
	page.State = state
	return page, nil
}

func decodePage(start, end []byte, o readOptions, a *abci.ResponseQuery) (page *Page, verify proof, err error) {
	page = new(Page)
	page.Entries, page.Next, err = decodeRangeResponse(a.Value, o.limit)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrUnproved, err)
	}
	if o.prove {
		tree, simpleMap, err := splitProof(a.ProofOps, avlstar.OpRange, start)
		if err != nil {
			return nil, nil, err
		}
		page.Proof = &avlstar.RangeProof{Tree: tree, Map: simpleMap}
	}
	verify = func(appHash avlstar.Hash) error {
		return avlstar.VerifyRange(appHash, start, end, o.limit, page.Entries, page.Next, *page.Proof)
	}
	// VerifyRange checks that too. An unverified answer must not make Scan loop forever.
	if page.Next != nil && bytes.Compare(page.Next, start) <= 0 {
		return nil, nil, fmt.Errorf("%w: its next page does not lie behind this one", ErrUnproved)
	}
	return page, verify, nil
}

// Scan reads a whole range page by page, from the state of the first page. It ends after an error.
func (c *Client) Scan(ctx context.Context, start, end []byte, options ...ReadOption) iter.Seq2[avlstar.KV, error] {
	return func(yield func(avlstar.KV, error) bool) {
		for {
			page, err := c.Range(ctx, start, end, options...)
			if err != nil {
				yield(avlstar.KV{}, err)
				return
			}
			for _, entry := range page.Entries {
				if !yield(entry, nil) {
					return
				}
			}
			if page.Next == nil {
				return
			}
			start = page.Next
			options = append(options[:len(options):len(options)], AtHeight(page.Height))
		}
	}
}

// PrefixEnd returns the least key above all that start with prefix, or nil (open) if there is none.
// [prefix, PrefixEnd(prefix)) is the range of a prefix.
func PrefixEnd(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			end := bytes.Clone(prefix[:i+1])
			end[i]++
			return end
		}
	}
	return nil
}

func (c *Client) readOptions(options []ReadOption) readOptions {
	o := readOptions{limit: DefaultRangeLimit}
	for _, option := range options {
		option(&o)
	}
	o.limit = max(o.limit, 1)
	o.prove = o.prove || c.verifies(o)
	return o
}

func (c *Client) verifies(o readOptions) bool { return c.verifier != nil && !o.believe }

// splitProof splits a proof into its two operators. In an empty tree there is only the map's.
func splitProof(ops *crypto.ProofOps, kind string, key []byte) (state, simpleMap []byte, err error) {
	if ops == nil {
		return nil, nil, fmt.Errorf("%w: it has no proof", ErrUnproved)
	}
	list := ops.Ops
	if len(list) == 2 && list[0].Type == kind && bytes.Equal(list[0].Key, key) && len(list[0].Data) > 0 {
		state, list = list[0].Data, list[1:]
	}
	if len(list) != 1 || list[0].Type != avlstar.OpMap || string(list[0].Key) != avlstar.MapKey {
		return nil, nil, fmt.Errorf("%w: its proof operators are not those of a Starling query", ErrUnproved)
	}
	return state, list[0].Data, nil
}

// shorten shortens long keys in messages.
func shorten(key []byte) []byte {
	if len(key) > 64 {
		return append(bytes.Clone(key[:61]), "..."...)
	}
	return key
}
