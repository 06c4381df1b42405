package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/proto/tendermint/crypto"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/keyspace"
)

const (
	// DefaultRangeLimit is the number of entries of a page unless the caller sets Limit.
	DefaultRangeLimit = 1000
	// MaxRangeLimit is the maximum number of entries that a node returns in a page.
	MaxRangeLimit = 10_000
)

// State identifies the state of an answer.
type State struct {
	Height   int64 // the state after this block
	Verified bool  // the proof leads to a trusted header; the fields below are set
	AppHash  avlstar.Hash
	Time     time.Time // of header Height+1, which has AppHash: it shows the age of the answer
}

// Value is the result of a read of one key.
type Value struct {
	State
	Key   []byte
	Value []byte // nil if not Found
	Found bool
	Proof *avlstar.Proof // if requested, or verified
}

// Page is one part of a range.
type Page struct {
	State
	Entries []avlstar.KV       // without values with KeysOnly
	Keys    []avlstar.KeyEntry // with KeysOnly: length and SHA-256 of the values
	// Next is the start of the next page or, with Reverse, its end; nil: this is the last page.
	Next  []byte
	Proof *avlstar.RangeProof
}

// ReadOption changes how to read.
type ReadOption func(*readOptions)

type readOptions struct {
	height  int64
	prove   bool
	believe bool
	limit   int

	keysOnly, reverse bool
}

// AtHeight reads the state after this block, which the node must still keep.
func AtHeight(height int64) ReadOption { return func(o *readOptions) { o.height = height } }

// Prove requests the proof even if this client does not verify it.
func Prove() ReadOption { return func(o *readOptions) { o.prove = true } }

// Unverified trusts the node for this read.
func Unverified() ReadOption { return func(o *readOptions) { o.believe = true } }

// Limit sets the maximum number of entries of a page (DefaultRangeLimit). A node may return fewer.
func Limit(n int) ReadOption { return func(o *readOptions) { o.limit = n } }

// KeysOnly omits the values. Page.Keys has their lengths and hashes, which are proved like values.
// The proof also shows that no key is missing.
func KeysOnly() ReadOption { return func(o *readOptions) { o.keysOnly = true } }

// Reverse reads a range from its end, so the entries of a page are in descending order.
func Reverse() ReadOption { return func(o *readOptions) { o.reverse = true } }

// Get reads a key from the latest state, or from that of AtHeight. With verification it waits for
// the header that proves the answer, which is that of the next block. If there is no next block yet
// and the last one is empty, the answer is that of the height below, which the last header proves.
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
	v := &Value{Key: key, Found: len(a.Value) > 0} // values are never empty
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
// complete: no key is missing between two entries, or between the bound and the first entry.
func (c *Client) Range(ctx context.Context, start, end []byte, options ...ReadOption) (*Page, error) {
	if len(end) > 0 && bytes.Compare(start, end) >= 0 {
		return nil, errors.New("client: the range is empty: its start is not below its end")
	}
	o := c.readOptions(options)
	page, state, err := read(ctx, c, query[*Page]{
		readOptions: o,
		path:        "/range",
		data:        encodeRangeRequest(start, end, o),
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
	page.Entries, page.Keys, page.Next, err = decodeRangeResponse(a.Value, o)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrUnproved, err)
	}
	from, next := start, page.Next
	if o.reverse && next != nil {
		// The page is the whole range from its last entry on; the next page ends before that entry.
		if n := len(page.Entries); n == 0 || !bytes.Equal(page.Entries[n-1].Key, next) {
			return nil, nil, fmt.Errorf("%w: its next page does not begin where this one ends: does the node support reverse reads?", ErrUnproved)
		}
		from, next = next, nil
	}
	if o.prove {
		tree, simpleMap, err := splitProof(a.ProofOps, avlstar.OpRange, from)
		if err != nil {
			return nil, nil, err
		}
		page.Proof = &avlstar.RangeProof{Tree: tree, Map: simpleMap}
	}
	verify = func(appHash avlstar.Hash) error {
		entries, keys := page.Entries, page.Keys
		if o.reverse {
			entries, keys = slices.Clone(entries), slices.Clone(keys)
			slices.Reverse(entries)
			slices.Reverse(keys)
		}
		if o.keysOnly {
			return avlstar.VerifyKeys(appHash, from, end, o.limit, keys, next, *page.Proof)
		}
		return avlstar.VerifyRange(appHash, from, end, o.limit, entries, next, *page.Proof)
	}
	// The proof shows this, too, but an unverified answer must not make Scan loop forever.
	ahead := page.Next == nil || bytes.Compare(page.Next, start) > 0
	if o.reverse {
		ahead = page.Next == nil || len(page.Next) > 0 && bytes.Compare(page.Next, start) >= 0 && (len(end) == 0 || bytes.Compare(page.Next, end) < 0)
	}
	if !ahead {
		return nil, nil, fmt.Errorf("%w: its next page does not follow this one", ErrUnproved)
	}
	return page, verify, nil
}

// Count returns the number of keys in [start, end), from the state of its first page. It reads all
// keys, without values. With verification the number is proved, as State.Verified reports.
func (c *Client) Count(ctx context.Context, start, end []byte, options ...ReadOption) (int, State, error) {
	options = append(options[:len(options):len(options)], KeysOnly(), Limit(MaxRangeLimit))
	count := 0
	for {
		page, err := c.Range(ctx, start, end, options...)
		if err != nil {
			return 0, State{}, err
		}
		count += len(page.Entries)
		if start, end = c.readOptions(options).rest(start, end, page); page.Next == nil || len(end) > 0 && bytes.Equal(start, end) {
			return count, page.State, nil
		}
		options = append(options, AtHeight(page.Height))
	}
}

// rest returns the bounds of the remaining range.
func (o readOptions) rest(start, end []byte, page *Page) (from, to []byte) {
	switch {
	case page.Next == nil:
		return start, end
	case o.reverse:
		return start, page.Next
	}
	return page.Next, end
}

// Scan reads a whole range page by page, all from the state of the first page. It ends after an
// error.
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
			if start, end = c.readOptions(options).rest(start, end, page); page.Next == nil || len(end) > 0 && bytes.Equal(start, end) {
				return
			}
			options = append(options[:len(options):len(options)], AtHeight(page.Height))
		}
	}
}

// PrefixEnd returns the least key above all keys with a prefix, or nil (open) if there is none. The
// range of a prefix is [prefix, PrefixEnd(prefix)).
func PrefixEnd(prefix []byte) []byte { return keyspace.PrefixEnd(prefix) }

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

// splitProof splits a proof into its two operators. For an empty tree there is only the operator of
// the map.
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
