package event

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Path is the path of the ABCI query: its data is a Request, the value of its answer an Answer.
const Path = "/events"

// Kinds of changes to keys of clients. Changes to the application's own records, whose keys start
// with 0x00, have other kinds.
const (
	Put    = "put"
	Delete = "delete"
)

// Event is a change of one key by one operation of a transaction.
type Event struct {
	Height   int64
	Index    uint32 // among all events of the block, in the order of the operations
	Tx       []byte // hash of the transaction (SHA-256)
	Kind     string
	Key      []byte
	Value    []byte // nil: the key was deleted
	Previous []byte // before the operation; nil: it was absent, or not asked for, or Omitted
	// Omitted: there was a previous value, but those of the block were too large together for the
	// log. It is set whether or not previous values were asked for.
	Omitted bool
}

// Token returns the token that continues after e.
func (e *Event) Token() Token { return Token{e.Height, e.Index}.next() }

// Token is where a watch continues: the event with this number in the block of this height, and all
// after it. It is good at any node.
type Token struct {
	Height int64
	Index  uint32
}

func (t Token) next() Token {
	if t.Index == math.MaxUint32 {
		return Token{t.Height + 1, 0}
	}
	return Token{t.Height, t.Index + 1}
}

// Before reports whether t is before u.
func (t Token) Before(u Token) bool {
	return t.Height < u.Height || t.Height == u.Height && t.Index < u.Index
}

// String returns the text that ParseToken reads: HEIGHT.INDEX.
func (t Token) String() string { return fmt.Sprintf("%d.%d", t.Height, t.Index) }

var errToken = errors.New("a token is HEIGHT.INDEX, as 1200.3")

// ParseToken reads a token, in the only form that String writes.
func ParseToken(s string) (Token, error) {
	height, index, ok := strings.Cut(s, ".")
	if !ok {
		return Token{}, fmt.Errorf("%w: %q has no dot", errToken, shorten(s))
	}
	h, err := strconv.ParseInt(height, 10, 64)
	if err != nil || h < 1 {
		return Token{}, fmt.Errorf("%w: the height in %q is not a whole number from 1 on", errToken, shorten(s))
	}
	i, err := strconv.ParseUint(index, 10, 32)
	if err != nil {
		return Token{}, fmt.Errorf("%w: the index in %q is not a whole number below 2^32", errToken, shorten(s))
	}
	t := Token{h, uint32(i)}
	if t.String() != s {
		return Token{}, fmt.Errorf("%w: %q has another form", errToken, shorten(s))
	}
	return t, nil
}

func shorten(s string) string { return s[:min(len(s), 64)] }

// Keys is the range of keys [Start, End); an empty bound is open.
type Keys struct{ Start, End []byte }

// Contains reports whether key is in the range.
func (k Keys) Contains(key []byte) bool {
	return bytes.Compare(key, k.Start) >= 0 && (len(k.End) == 0 || bytes.Compare(key, k.End) < 0)
}

// Request asks for the events from a token on.
type Request struct {
	From     Token // height 0: from the next block on
	Keys     Keys
	Previous bool   // with Event.Previous
	WaitMS   uint32 // if there is no event yet, wait so long for one; a node may wait shorter
	MaxBytes uint32 // of the events in the answer; 0, or more than MaxAnswerBytes: MaxAnswerBytes
}

// Answer has the events from the token of the request up to Next, of the keys that were asked for.
type Answer struct {
	Events []Event
	Next   Token // the next request's From
	Head   int64 // the height of the last block of which the node has the events
	// Least is the lowest height that a request may name: that of the oldest block whose events the
	// node has.
	Least int64
}

// Compacted reports whether the node has no longer the events of a request from t on: then the
// answer has none, and its Next is t.
func (a *Answer) Compacted(t Token) bool { return t.Height > 0 && t.Height < a.Least }

// Limits of an answer, whichever is reached first. One event always fits: with its base64 form, an
// answer stays below the 4 MiB of a gRPC message.
const (
	MaxAnswerBytes  = 2 << 20
	MaxAnswerEvents = 20_000
)

// Block is what a block has changed.
type Block struct {
	Height  int64
	Txs     [][]byte // that Change.Tx counts
	Changes []Change
}

// Change is an event before it is numbered. Nobody modifies its memory any more.
type Change struct {
	Tx                   int // in Block.Txs
	Kind                 string
	Key, Value, Previous []byte
	Omitted              bool
}

// ErrBusy: so many requests wait at a node that it takes no more.
var ErrBusy = errors.New("too many watchers wait at this node")
