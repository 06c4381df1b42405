package client

import (
	"errors"
	"fmt"

	rpctypes "github.com/cometbft/cometbft/rpc/jsonrpc/types"

	"github.com/starling-kv/starling/tx"
)

var (
	// ErrNoKey says that a write was asked of a client without a key (WithKey).
	ErrNoKey = errors.New("this client has no key to sign with: give it one with WithKey")

	// ErrUnreachable says that no node answered.
	ErrUnreachable = errors.New("no node answers")

	// ErrWrongChain says that a node serves another chain than the one asked for.
	ErrWrongChain = errors.New("the node serves another chain")

	// ErrUnproved says that an answer's proof does not hold: the node that gave it lies or is broken.
	ErrUnproved = errors.New("the answer is not proved")

	// ErrUntrusted says that no chain of trust leads to the header that a proof needs.
	ErrUntrusted = errors.New("the header is not trusted")

	// ErrConflict says that two nodes have different headers for one height and both are signed by enough validators.
	ErrConflict = errors.New("two signed headers for one height")

	// ErrRepeatedText says that a text transaction equals one that the node has seen lately, which it will not take again.
	ErrRepeatedText = errors.New("the node has seen this very text transaction before and does not take it again soon: use a signed transaction")

	errNotFound = errors.New("not found")
)

// TxError says that a transaction was refused: none of its operations took effect. (If it was refused before its nonce was used,
// whoever has its bytes could send them again, until another transaction uses that nonce.)
type TxError struct {
	Hash   []byte
	Height int64 // of the block that holds it; 0: refused before any block
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

// UnknownOutcomeError says that a transaction was sent, or may have been, and that nothing is known about its fate: it may be in a
// block already, or come into one later. Client.WaitTx(ctx, Hash) asks again. Sending its operations anew could apply them twice.
type UnknownOutcomeError struct {
	Hash []byte
	Err  error // why nothing is known
}

func (e *UnknownOutcomeError) Error() string {
	return fmt.Sprintf("transaction %X may or may not be executed, look again later (starlingd tx wait %X): %v", e.Hash, e.Hash, e.Err)
}

func (e *UnknownOutcomeError) Unwrap() error { return e.Err }

// QueryError says that a node refused a query.
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

// answered reports whether err is a node's own answer, in contrast to a failure on the way to it.
func answered(err error) bool {
	var rpc *rpctypes.RPCError
	return errors.As(err, &rpc)
}
