package app

import (
	"context"
	"crypto/sha256"
	"sync"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// checker is what CheckTx knows: the committed state, and how many transactions of each account wait for a block. A commit starts
// it anew and CometBFT's recheck counts again what is still in the mempool.
type checker struct {
	mu struct {
		sync.Mutex
		version   *avlstar.Version // committed, or of genesis; nil: none; holds a reference of its own, released by reset
		params    *Params
		waiting   map[[AccountBytes]byte]uint64
		rewritten map[[sha256.Size]byte]struct{} // see colonID; of the last block

		// Signed transactions that were admitted since the last commit, and before it, as long as no right has changed.
		admitted, earlier map[[sha256.Size]byte]sender
	}
}

// sender is what a recheck needs of a transaction: its nonce alone. To execute a mempool of large ones anew after every block would
// hold up the next block for a minute.
type sender struct {
	account [AccountBytes]byte
	nonce   uint64
}

// maxAdmitted bounds what is remembered of transactions, of which CheckTx does not learn whether the mempool took them.
const maxAdmitted = 1 << 16

// reset starts anew on a committed state, which it retains. sameRights tells that who may do what is as it was before.
func (c *checker) reset(v *avlstar.Version, params *Params, rewritten map[[sha256.Size]byte]struct{}, sameRights bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.earlier = nil
	if sameRights {
		c.mu.earlier = c.mu.admitted
	}
	c.mu.admitted = make(map[[sha256.Size]byte]sender)
	if v != nil {
		v.Retain()
	}
	if c.mu.version != nil {
		c.mu.version.Release()
	}
	c.mu.version, c.mu.params, c.mu.rewritten = v, params, rewritten
	c.mu.waiting = make(map[[AccountBytes]byte]uint64)
}

// state returns what CheckTx is to look at, nil where there is nothing yet. The caller releases the version.
func (c *checker) state() (*avlstar.Version, *Params) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.version != nil {
		c.mu.version.Retain()
	}
	return c.mu.version, c.mu.params
}

// parameters returns those of the state, nil where there is none yet.
func (c *checker) parameters() *Params {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.params
}

// admit takes the transaction with this hash as the account's next one, if it is.
func (c *checker) admit(id [sha256.Size]byte, from sender) *tx.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting := c.mu.waiting[from.account]
	committed, unread := committedNonce(c.mu.version, from.account[:])
	if unread != nil {
		return unread
	}
	next := committed + waiting
	if err := checkNonce(from.account[:], from.nonce, next); err != nil {
		err.Reason += waitingNote(waiting)
		return err
	}
	c.mu.waiting[from.account] = waiting + 1
	if len(c.mu.admitted) < maxAdmitted {
		c.mu.admitted[id] = from
	}
	return nil
}

// admittedEarlier finds a transaction that was admitted before the last commit and needs no more than another look at its nonce.
func (c *checker) admittedEarlier(id [sha256.Size]byte) (sender, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from, ok := c.mu.earlier[id]
	return from, ok
}

func waitingNote(waiting uint64) string {
	if waiting == 0 {
		return ""
	}
	return ", counting those that wait for a block"
}

// nextNonce returns the account's next nonce, counting waiting transactions.
func (c *checker) nextNonce(account []byte) (uint64, *tx.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.version == nil {
		return 0, tx.Errorf(tx.CodeUnknownHeight, "%v", errNoGenesis)
	}
	committed, unread := committedNonce(c.mu.version, account)
	return committed + c.mu.waiting[[AccountBytes]byte(account)], unread
}

func committedNonce(v *avlstar.Version, account []byte) (uint64, *tx.Error) {
	value, _ := v.Get(NonceKey(account))
	return decodeUint64(value), readable(v)
}

func (c *checker) wasRewritten(id [sha256.Size]byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.mu.rewritten[id]
	return ok
}

// CheckTx keeps out of the mempool what would be refused in a block without a trace, and what lacks the right to do what it does as
// of the committed state. What may yet succeed or fail by the order of transactions (comparisons, quotas) is let in.
func (a *App) CheckTx(_ context.Context, req *abci.RequestCheckTx) (*abci.ResponseCheckTx, error) {
	if err := a.checkTx(req); err != nil {
		return &abci.ResponseCheckTx{Code: uint32(err.Code), Codespace: tx.Codespace, Log: err.Reason}, nil //nolint:nilerr // a refusal is an answer
	}
	return &abci.ResponseCheckTx{GasWanted: 1}, nil // gas counts transactions, as with CometBFT's kvstore
}

func (a *App) checkTx(req *abci.RequestCheckTx) *tx.Error {
	v, params := a.check.state()
	if v == nil {
		return tx.Errorf(tx.CodeUnknownHeight, "%v", errNoGenesis)
	}
	defer v.Release()
	err := a.checkTxOn(v, params, req)
	if unread := readable(v); unread != nil {
		return unread
	}
	return err
}

func (a *App) checkTxOn(v *avlstar.Version, params *Params, req *abci.RequestCheckTx) *tx.Error {
	id, again := sha256.Sum256(req.Tx), req.Type == abci.CheckTxType_Recheck
	if from, ok := a.check.admittedEarlier(id); ok && again {
		return a.check.admit(id, from)
	}
	t, refused := a.decoder.decode(id, req.Tx, params.ChainId)
	if refused != nil {
		return refused
	}
	if t.Text != nil && again && a.check.wasRewritten(id) {
		return tx.Errorf(tx.CodeBadNonce, "it is in a block, written key=value")
	}
	if err := mayRun(v, params, t); err != nil {
		return err
	}
	if t.Body != nil {
		return a.check.admit(id, sender{[AccountBytes]byte(t.Body.Account), t.Body.Nonce})
	}
	return nil
}

// mayRun tries the transaction on v, whatever its nonce, and returns the refusal if a right is missing. No right depends on the height.
func mayRun(v *avlstar.Version, params *Params, t *tx.Tx) *tx.Error {
	if t.Text != nil { // as it writes whatever the value before, there is nothing to try
		return newOverlay(v).refuseText(params, t.Text)
	}
	x := newExecutor(newOverlay(v), params, 0)
	tried := *t.Body
	tried.Nonce = x.nonce(tried.Account)
	err := x.run(&tx.Tx{Body: &tried}).err
	if err == nil {
		return nil
	}
	switch err.Code {
	case tx.CodeUnauthorized, tx.CodeNotAdmin, tx.CodeTextClosed, tx.CodeReserved:
		return err
	}
	return nil
}
