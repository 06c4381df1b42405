package event

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Path is the path of the ABCI query. Its data is a Request, and the value of its response is an
// Answer.
const Path = "/events"

// Kinds of changes to clients' keys. Changes to system keys, which start with 0x00, have other
// kinds.
const (
	Put    = "put"
	Delete = "delete"
)

// Event is a change of one key by one operation of a transaction.
type Event struct {
	Height   int64
	Index    uint32 // number among all events of the block, in the order of the operations
	Tx       []byte // hash of the transaction (SHA-256)
	Kind     string
	Key      []byte
	Value    []byte // nil: the key was deleted
	Previous []byte // value before the operation; nil: absent, not requested, or Omitted
	// Omitted says that there was a previous value, but that the previous values of the block were
	// together too large for the log. It is set whether or not previous values were requested.
	Omitted bool
}

// Token returns the token for continuing after e.
func (e *Event) Token() Token { return Token{e.Height, e.Index}.next() }

// Token is the point from which a watch continues: the event with this number in the block of this
// height, and all events after it. It is valid at any node.
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

var errToken = errors.New("a token is HEIGHT.INDEX, such as 1200.3")

// ParseToken reads a token in the form that String writes, which is the only valid one.
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

// Request requests the events from a token on.
type Request struct {
	From     Token // height 0: from the next block on
	Keys     Keys
	Previous bool   // whether to include Event.Previous
	WaitMS   uint32 // how long to wait for an event if there is none yet; a node may wait less
	MaxBytes uint32 // limit for events in the answer; 0 or above the maximum: MaxAnswerBytes
}

// Answer has the events of the requested keys from the token of the request up to Next.
type Answer struct {
	Events []Event
	Next   Token // the next request's From
	Head   int64 // height of the last block whose events the node has
	// Least is the lowest height that a request may name: that of the oldest block whose events the
	// node has.
	Least int64
}

// Compacted reports whether the node no longer has the events of a request from t on. The answer
// then has no events, and its Next is t.
func (a *Answer) Compacted(t Token) bool { return t.Height > 0 && t.Height < a.Least }

// Limits of an answer, whichever is reached first. One event always fits. In its base64 form, an
// answer stays below the 4 MiB of a gRPC message.
const (
	MaxAnswerBytes  = 2 << 20
	MaxAnswerEvents = 20_000
)

// Block contains the changes of a block.
type Block struct {
	Height  int64
	Txs     [][]byte // Change.Tx is an index of it
	Changes []Change
}

// Change is an event before it is numbered. Its memory is no longer modified.
type Change struct {
	Tx                   int // index in Block.Txs
	Kind                 string
	Key, Value, Previous []byte
	Omitted              bool
}

// ErrBusy is returned if so many requests wait at a node that it accepts no more.
var ErrBusy = errors.New("too many watchers wait at this node")
