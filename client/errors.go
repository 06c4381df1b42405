package client

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/starling-kv/starling/tx"
)

var (
	// ErrNoKey means that a write was attempted by a client without a key (WithKey).
	ErrNoKey = errors.New("the client has no key to sign with: use WithKey")

	// ErrUnreachable means that no node answered.
	ErrUnreachable = errors.New("no node answers")

	// ErrWrongChain means that a node serves a chain other than the requested one.
	ErrWrongChain = errors.New("the node serves another chain")

	// ErrUnproved means that the proof of an answer is invalid: the node is Byzantine or broken.
	ErrUnproved = errors.New("the answer is not proved")

	// ErrUntrusted means that no chain of trust leads to the header needed for a proof.
	ErrUntrusted = errors.New("the header is not trusted")

	// ErrConflict means that two nodes have different headers of one height, both with signatures
	// of enough validators.
	ErrConflict = errors.New("two signed headers for one height")

	// ErrRepeatedText means that a text transaction equals a recent one, so the node does not
	// accept it again.
	ErrRepeatedText = errors.New("the node has seen this very text transaction before and will not accept it again soon: use a signed transaction")

	errNotFound = errors.New("not found")
)

// TxError means that a transaction was refused and none of its operations took effect. If it was
// refused before its nonce was used, anybody who has its bytes can send it again, until another
// transaction uses that nonce.
type TxError struct {
	Hash   []byte
	Height int64 // of its block; 0: refused before it was in a block
	Code   tx.Code
	Log    string
}

func (e *TxError) Error() string {
	where := "before any block"
	if e.Height > 0 {
		where = fmt.Sprintf("in block %d", e.Height)
	}
	return fmt.Sprintf("transaction %X was refused %s with code %d: %s", e.Hash, where, uint32(e.Code), reason(e.Code, e.Log))
}

// Unwrap lets errors.Is(err, &tx.Error{Code: …}) find the code.
func (e *TxError) Unwrap() error { return &tx.Error{Code: e.Code, Reason: e.Log} }

// UnknownOutcomeError means that a transaction may have been sent, and its outcome is unknown: it
// may be in a block already, or be added to one later. Client.WaitTx(ctx, Hash) checks again.
// Sending its operations in a new transaction could apply them twice.
type UnknownOutcomeError struct {
	Hash []byte
	Err  error // why the outcome is unknown
}

func (e *UnknownOutcomeError) Error() string {
	return fmt.Sprintf("transaction %X may or may not be executed, check again later (starlingd tx wait %X): %v", e.Hash, e.Hash, e.Err)
}

func (e *UnknownOutcomeError) Unwrap() error { return e.Err }

// QueryError means that a node refused a query.
type QueryError struct {
	Path string
	Code tx.Code
	Log  string
}

func (e *QueryError) Error() string {
	return fmt.Sprintf("query %s was refused with code %d: %s", e.Path, uint32(e.Code), reason(e.Code, e.Log))
}

// Unwrap lets errors.Is(err, &tx.Error{Code: …}) find the code.
func (e *QueryError) Unwrap() error { return &tx.Error{Code: e.Code, Reason: e.Log} }

func reason(code tx.Code, log string) string {
	if log == "" {
		return code.String()
	}
	return log
}

// CallError means that no node gave a useful answer to a call. It wraps the errors of all nodes,
// and ErrUnreachable if no node answered at all.
type CallError struct {
	What  string      // the call
	Nodes []NodeError // nodes that were asked, in this order
	Err   error       // context error, if it ended the call before every node had answered
}

// NodeError is the error of one node, or the reason why it did not answer.
type NodeError struct {
	Node string // its address
	Err  error
}

func (e *CallError) Error() string {
	var b strings.Builder
	if e.unreachable() {
		fmt.Fprintf(&b, "%v: ", ErrUnreachable)
	}
	b.WriteString(e.What)
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	for i, n := range e.Nodes {
		switch {
		case len(e.Nodes) == 1:
			fmt.Fprintf(&b, " at %s: %v", n.Node, n.Err)
		case i == 0:
			fmt.Fprintf(&b, " at %d nodes: %s: %v", len(e.Nodes), n.Node, n.Err)
		default:
			fmt.Fprintf(&b, "; %s: %v", n.Node, n.Err)
		}
	}
	return b.String()
}

// Unwrap returns the errors of all nodes, and those of the call as a whole.
func (e *CallError) Unwrap() []error {
	var all []error
	if e.unreachable() {
		all = append(all, ErrUnreachable)
	}
	if e.Err != nil {
		all = append(all, e.Err)
	}
	for _, n := range e.Nodes {
		all = append(all, n.Err)
	}
	return all
}

// unreachable reports whether no node answered although there was time.
func (e *CallError) unreachable() bool {
	return e.Err == nil && !slices.ContainsFunc(e.Nodes, func(n NodeError) bool { return heard(n.Err) })
}

// all reports whether every node returned that error.
func (e *CallError) all(said error) bool {
	return len(e.Nodes) > 0 && !slices.ContainsFunc(e.Nodes, func(n NodeError) bool { return !errors.Is(n.Err, said) })
}
