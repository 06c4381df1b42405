package app

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// checker is the state of CheckTx: the committed version, and the number of transactions of each
// account that wait for a block. Each commit resets it. CometBFT's recheck then counts the
// transactions again that are still in the mempool.
type checker struct {
	mu struct {
		sync.Mutex
		// The committed version, or that of genesis; nil if there is none. It holds a reference of
		// its own, which reset releases.
		version   *avlstar.Version
		params    *Params
		waiting   map[[AccountBytes]byte]uint64
		rewritten map[[sha256.Size]byte]struct{} // in the last block; see colonID

		// Signed transactions that were admitted since the last commit, and those that were
		// admitted before it. The latter are dropped when a right may have changed.
		admitted, earlier map[[sha256.Size]byte]sender
		order             [][sha256.Size]byte // order of admitted; a ring when it is full
		oldest            int                 // index in order

		// Transactions that were let in since the last commit although nodes of the tree that their
		// check needs were missing. Each has a slot until its rights were checked, or until the
		// next commit.
		unchecked map[[sha256.Size]byte]sender
		// Transactions of unchecked that were still unchecked at the next commit, and are in no
		// block. They keep their slots until the recheck or another commit.
		left map[[sha256.Size]byte]sender
		// The numbers of entries of unchecked and left together, with sender.user and without.
		users, others int

		// The first transactions that were rechecked since the last commit, and the sums of their
		// bytes and keys; and those before it. See leftOut.
		front, frontBefore    map[[sha256.Size]byte]struct{}
		frontBytes, frontKeys int
	}
}

// sender contains the facts about a transaction that a recheck needs. Checking the rights of a
// mempool of large transactions again after every block would delay the next block.
type sender struct {
	account  [AccountBytes]byte
	nonce    uint64
	newcomer bool // whether it was one when it was checked: see standing.newcomer
	user     bool // whether the node knows that the account has sent transactions before
}

// maxAdmitted limits the remembered transactions, because CheckTx never learns whether the mempool
// kept one. The oldest are forgotten first.
const maxAdmitted = 1 << 16

// maxUnchecked limits the transactions that wait for a block unchecked: those of users, and those
// of all others, which cost their senders only a signature and a nonce.
const maxUnchecked = 1 << 12

// reset starts again on a committed state, which it retains. sameRights says that no block since
// the last reset has changed an account's rights. included are the transactions of the block, which
// give up their slots.
func (c *checker) reset(v *avlstar.Version, params *Params, rewritten map[[sha256.Size]byte]struct{}, sameRights bool, included []decoded) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.earlier = nil
	if sameRights {
		c.mu.earlier = c.mu.admitted
	}
	c.mu.admitted, c.mu.order, c.mu.oldest = make(map[[sha256.Size]byte]sender), nil, 0
	if v != nil {
		v.Retain()
	}
	if c.mu.version != nil {
		c.mu.version.Release()
	}
	c.mu.version, c.mu.params, c.mu.rewritten = v, params, rewritten
	c.mu.waiting = make(map[[AccountBytes]byte]uint64)
	c.mu.front, c.mu.frontBefore, c.mu.frontBytes, c.mu.frontKeys = make(map[[sha256.Size]byte]struct{}), c.mu.front, 0, 0
	c.mu.left = nil
	if v != nil {
		c.mu.left = c.mu.unchecked
		for i := range included {
			delete(c.mu.left, included[i].id)
		}
	}
	c.mu.unchecked, c.mu.users, c.mu.others = nil, 0, 0
	for _, from := range c.mu.left {
		*c.slots(from)++
	}
}

// slots returns the number of slots of senders like this one. The caller holds the lock.
func (c *checker) slots(from sender) *int {
	if from.user {
		return &c.mu.users
	}
	return &c.mu.others
}

// freeSlot frees the slot of a transaction, if it has one in a map, which is unchecked or left. The
// caller holds the lock.
func (c *checker) freeSlot(of map[[sha256.Size]byte]sender, id [sha256.Size]byte) (had bool) {
	from, had := of[id]
	if had {
		delete(of, id)
		*c.slots(from)--
	}
	return had
}

// refresh replaces the version that is checked against by another one of the same state, which it
// retains.
func (c *checker) refresh(v *avlstar.Version) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.version != nil {
		v.Retain()
		c.mu.version.Release()
		c.mu.version = v
	}
}

// state returns the state that CheckTx checks against, or nil if there is none yet. The caller
// releases the version.
func (c *checker) state() (*avlstar.Version, *Params) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.version != nil {
		c.mu.version.Retain()
	}
	return c.mu.version, c.mu.params
}

// admit counts the transaction with hash id if its nonce is the account's next one. If whole is
// set, the transaction need not be checked again unless a right changes. Otherwise, or if the
// account's nonce is missing, it is one of those that wait unchecked. again says that the mempool
// has it.
func (c *checker) admit(id [sha256.Size]byte, from sender, whole, again bool) *tx.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.version == nil { // dropped meanwhile, see App.Forget
		return tx.Errorf(tx.CodeUnknownHeight, "%v", errNoGenesis)
	}
	waiting := c.mu.waiting[from.account]
	committed, err := committedNonce(c.mu.version, from.account[:])
	known := !isMissing(err)
	if err != nil && known {
		return refusal(err, tx.CodeUnreadable)
	}
	from.user = known && committed > 0
	if _, ok := c.mu.admitted[id]; ok {
		// The mempool may never have received it: anybody who saw the bytes can submit them over
		// RPC. If the mempool has it, it drops the second copy.
		return nil
	}
	if known {
		next := committed + waiting
		if err := checkNonce(from.account[:], from.nonce, next); err != nil {
			if _, ok := c.mu.unchecked[id]; ok {
				return nil // as above
			}
			err.Reason += waitingNote(waiting)
			return err
		}
	}
	if !known || !whole {
		before := len(c.mu.unchecked)
		if err := c.leaveUnchecked(id, from, again); err != nil {
			return err
		}
		if len(c.mu.unchecked) > before {
			c.mu.waiting[from.account] = waiting + 1
		}
		return nil
	}
	c.mu.waiting[from.account] = waiting + 1
	c.freeSlot(c.mu.left, id)
	c.remember(id, from)
	return nil
}

// remember records a transaction as admitted. The caller holds the lock.
func (c *checker) remember(id [sha256.Size]byte, from sender) {
	if len(c.mu.order) < maxAdmitted {
		c.mu.order = append(c.mu.order, id)
	} else {
		oldest := &c.mu.order[c.mu.oldest]
		delete(c.mu.admitted, *oldest)
		*oldest, c.mu.oldest = id, (c.mu.oldest+1)%maxAdmitted
	}
	c.mu.admitted[id] = from
}

// leaveUnchecked lets the transaction with hash id in as one that could not be checked, unless
// there are too many. A transaction that the mempool already has (again) stays: it had a slot, and
// a refusal would lose it. The caller holds the lock.
func (c *checker) leaveUnchecked(id [sha256.Size]byte, from sender, again bool) *tx.Error {
	if _, ok := c.mu.unchecked[id]; ok {
		return nil
	}
	again = c.freeSlot(c.mu.left, id) || again
	if *c.slots(from) >= maxUnchecked && !again {
		return tx.Errorf(tx.CodeBusy, "%d transactions wait for missing parts of this node's state: send it again later, or to another node", maxUnchecked)
	}
	if c.mu.unchecked == nil {
		c.mu.unchecked = make(map[[sha256.Size]byte]sender)
	}
	c.mu.unchecked[id] = from
	*c.slots(from)++
	return nil
}

// leaveTextUnchecked does what leaveUnchecked does, for a text transaction, which has no nonce.
func (c *checker) leaveTextUnchecked(id [sha256.Size]byte, again bool) *tx.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaveUnchecked(id, sender{}, again)
}

// checked frees the slot of a transaction that was let in unchecked, when its rights were
// confirmed. A text transaction is not remembered, because it has no nonce to check again.
func (c *checker) checked(id [sha256.Size]byte, newcomer, text bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from, ok := c.mu.unchecked[id]
	if !ok || c.mu.version == nil {
		return
	}
	if next, err := committedNonce(c.mu.version, from.account[:]); err != nil || !text && from.nonce < next {
		return // the recheck refuses it
	}
	c.freeSlot(c.mu.unchecked, id)
	if from.newcomer = newcomer; !text {
		c.remember(id, from)
	}
}

// Limits of the transactions of which leftOut reports any: about the greatest length of a block by
// default, and the number of keys before the last one of them. A recheck of more keys would delay
// the commit.
const maxFront, maxFrontKeys = 4 << 20, 2048

// leftOut reports whether the last block left out a transaction that is being rechecked, although
// the transaction was among the first ones of the mempool, and fits into a block with those before
// it. So what a recheck requests is limited by what a block may name.
func (c *checker) leftOut(id [sha256.Size]byte, bytes, keys int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.mu.frontKeys
	c.mu.frontBytes, c.mu.frontKeys = c.mu.frontBytes+bytes, c.mu.frontKeys+keys
	if c.mu.frontBytes > maxFront || before > maxFrontKeys {
		return false
	}
	c.mu.front[id] = struct{}{}
	_, twice := c.mu.frontBefore[id]
	return twice
}

// drop frees the slot of a transaction.
func (c *checker) drop(id [sha256.Size]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.freeSlot(c.mu.unchecked, id)
	c.freeSlot(c.mu.left, id)
}

// admittedEarlier returns a transaction that was admitted before the last commit. Only its nonce
// must be checked again.
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

// nextNonce returns the account's next nonce, counting transactions that wait for a block.
func (c *checker) nextNonce(account []byte) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.version == nil {
		return 0, tx.Errorf(tx.CodeUnknownHeight, "%v", errNoGenesis)
	}
	committed, err := committedNonce(c.mu.version, account)
	if err != nil {
		return 0, err
	}
	return committed + c.mu.waiting[[AccountBytes]byte(account)], nil
}

// waitingOf returns the number of the account's transactions that wait for a block.
func (c *checker) waitingOf(account []byte) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.waiting[[AccountBytes]byte(account)]
}

// maxEarly is the largest gap between nonces for which early returns true.
const maxEarly = 64

// early reports whether the nonce of from is above the account's next one, by maxEarly at most.
// CometBFT gossips from several peers, so transactions may arrive in another order.
func (c *checker) early(from sender) bool {
	next, err := c.nextNonce(from.account[:])
	return err == nil && from.nonce > next && from.nonce-next <= maxEarly
}

func committedNonce(v *avlstar.Version, account []byte) (uint64, error) {
	value, _, err := v.ByKey().View(NonceKey(account))
	return decodeUint64(value), err
}

// numUnchecked returns the number of transactions that have slots as unchecked ones.
func (c *checker) numUnchecked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.unchecked) + len(c.mu.left)
}

func (c *checker) wasRewritten(id [sha256.Size]byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.mu.rewritten[id]
	return ok
}

// CheckTx keeps transactions out of the mempool that a block would refuse without a trace, or of
// which an operation has no right in the committed state. It executes nothing. It admits
// transactions whose success depends on the order of transactions (comparisons, quotas).
//
// It never waits for Options.Source. If nodes are missing, it requests them and lets the
// transaction in: the recheck after the next block checks it.
func (a *App) CheckTx(_ context.Context, req *abci.RequestCheckTx) (*abci.ResponseCheckTx, error) {
	if err := a.checkTx(req); err != nil {
		return &abci.ResponseCheckTx{Code: uint32(err.Code), Codespace: tx.Codespace, Log: err.Reason}, nil //nolint:nilerr // a refusal is an answer
	}
	// Gas counts transactions, as with CometBFT's kvstore.
	return &abci.ResponseCheckTx{GasWanted: 1}, nil
}

func (a *App) checkTx(req *abci.RequestCheckTx) *tx.Error {
	v, params := a.check.state()
	if v == nil {
		return tx.Errorf(tx.CodeUnknownHeight, "%v", errNoGenesis)
	}
	defer v.Release()
	refused := a.checkTxOn(v, params, req)
	if refused != nil && req.Type == abci.CheckTxType_Recheck {
		a.state.refused(sha256.Sum256(req.Tx))
	}
	return refused
}

func (a *App) checkTxOn(v *avlstar.Version, params *Params, req *abci.RequestCheckTx) *tx.Error {
	id, again := sha256.Sum256(req.Tx), req.Type == abci.CheckTxType_Recheck
	if from, ok := a.check.admittedEarlier(id); ok && again {
		var err error
		if from.newcomer { // other newcomers may have taken the room
			_, err = a.newExecutor(newCheckOverlay(v), params, 0).mayBegin(from.account[:])
		}
		if err != nil && !isMissing(err) {
			return refusal(err, tx.CodeUnreadable)
		}
		refused := a.check.admit(id, from, err == nil, again)
		if refused == nil && err == nil {
			a.state.waits(v, params, id, len(req.Tx))
		}
		return refused
	}
	t, refused := a.decoder.decode(id, req.Tx, a.form(params))
	if refused != nil {
		return refused
	}
	if t.Text != nil && again && a.check.wasRewritten(id) {
		return tx.Errorf(tx.CodeBadNonce, "it is in a block already, as key=value")
	}
	if refused := (load{}).plus(t).fits(a.rules(params), "the transaction names"); refused != nil {
		return refused
	}
	needs := a.state.needs()
	newcomer, err := a.mayRun(v, params, t, needs)
	unchecked := needs.lost() && isMissing(err)
	if err != nil && !unchecked {
		return refusal(err, tx.CodeUnreadable)
	}
	switch {
	case t.Body != nil:
		from := sender{account: [AccountBytes]byte(t.Body.Account), nonce: t.Body.Nonce, newcomer: newcomer}
		refused = a.check.admit(id, from, !unchecked, again)
		if needs != nil && !unchecked && !again && refused != nil && a.check.early(from) {
			a.askEarly(v, t)
		}
	case unchecked:
		refused = a.check.leaveTextUnchecked(id, again)
	}
	if needs != nil && refused == nil {
		return a.askFor(v, params, decoded{id: id, tx: t}, needs, unchecked)
	}
	return refused
}

// askFor requests the nodes for executing a transaction or, if it is unchecked, for checking it. So
// an account without a right causes only the records of its account to be fetched. needs holds the
// nodes that a check found missing.
func (a *App) askFor(v *avlstar.Version, params *Params, t decoded, needs *needs, unchecked bool) *tx.Error {
	if !unchecked {
		nameKeys(needs, t.tx, true)
		a.askChecked(v, needs.wants)
		return nil
	}
	if t.tx.Body != nil {
		o := newCheckOverlay(v)
		o.needs = needs
		if err := a.newExecutor(o, params, 0).exploreRights(t.tx); err != nil {
			return refusal(err, tx.CodeUnreadable)
		}
	}
	a.askUnchecked(v, t.id, needs.wants)
	a.options.Metrics.Witness.Unchecked.Set(float64(a.check.numUnchecked()))
	return nil
}

// mayRun returns a *tx.Error if an operation has no right in the state v, as changed by the grants
// and admins of the operations before it. No right depends on a height or on a client's value, so
// none is read. newcomer says that it would be a stranger's first transaction. needs records nodes
// that are missing in v.
func (a *App) mayRun(v *avlstar.Version, params *Params, t *tx.Tx, needs *needs) (newcomer bool, err error) {
	o := newCheckOverlay(v)
	o.needs = needs
	if t.Text != nil {
		return false, o.mayWriteText(params, t.Text)
	}
	x := a.newExecutor(o, params, 0)
	if newcomer, err = x.mayBegin(t.Body.Account); err != nil {
		return false, err
	}
	for i := range t.Body.Operations {
		var refused *tx.Error
		if err := x.right(t.Body.Account, &t.Body.Operations[i]); errors.As(err, &refused) {
			return false, tx.Errorf(refused.Code, "operation %d: %s", i, refused.Reason)
		} else if err != nil {
			return false, err
		}
	}
	return newcomer, nil
}

// mayBegin returns a *tx.Error if no transaction of the account can leave a trace, whatever it
// does.
func (x *executor) mayBegin(account []byte) (newcomer bool, err error) {
	who, err := x.standingOf(account)
	if err == nil && who.newcomer() {
		_, err = x.roomForStranger()
	}
	return who.newcomer(), err
}

// right returns a *tx.Error if the account may not do the operation at all. It makes only those
// changes of the operation that affect rights.
func (x *executor) right(account []byte, operation *tx.Operation) error {
	if key, writes := written(operation); writes {
		_, err := x.mayTouch(account, key)
		return err
	}
	switch op := operation.Op.(type) {
	case *tx.Operation_Read, *tx.Operation_Compare, *tx.Operation_ReadRange:
		return nil
	case *tx.Operation_DeleteRange:
		return x.mayDelete(account, op.DeleteRange)
	case *tx.Operation_Txn:
		return x.rightsOfBranches(account, op.Txn)
	case *tx.Operation_Deploy, *tx.Operation_Call:
		_, err := x.mayTouch(account, x.programRight(account, operation))
		return err
	case *tx.Operation_Grant:
		_, _, err := x.grant(account, op.Grant.Grantee, op.Grant.Prefix, op.Grant.Quota, KindGrant)
		return err
	case *tx.Operation_Revoke:
		_, _, err := x.grant(account, op.Revoke.Grantee, op.Revoke.Prefix, 0, KindRevoke)
		return err
	case *tx.Operation_SetAdmin:
		if err := x.onlyAdmin(account, "change admins"); err != nil {
			return err
		}
		value := adminValue
		if op.SetAdmin.Remove {
			value = nil
		}
		_, err := x.set(AdminKey(op.SetAdmin.Account), value)
		return err
	case *tx.Operation_SetValidator:
		return x.onlyAdmin(account, "change validators")
	case *tx.Operation_ScheduleUpgrade:
		return x.onlyAdmin(account, "schedule upgrades")
	case *tx.Operation_SetThreshold:
		if err := x.onlyAdmin(account, "change how many admins must approve"); err != nil {
			return err
		}
		_, err := x.set(ThresholdKey(), encodeThreshold(op.SetThreshold.Admins))
		return err
	case *tx.Operation_Propose:
		return x.anAdmin(account, "propose changes")
	case *tx.Operation_Approve:
		return x.anAdmin(account, "approve of changes")
	}
	return tx.Errorf(tx.CodeMalformed, "unknown operation")
}

// written returns the client's key that the operation writes, if there is one.
func written(operation *tx.Operation) (key []byte, ok bool) {
	switch operation.Op.(type) {
	case *tx.Operation_Put, *tx.Operation_Delete, *tx.Operation_CompareAndPut, *tx.Operation_Add:
		return keyOf(operation), true
	}
	return nil, false
}
