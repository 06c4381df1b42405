package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/crypto/ed25519"
	cmtbytes "github.com/cometbft/cometbft/libs/bytes"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/proto/tendermint/crypto"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	cmtversion "github.com/cometbft/cometbft/proto/tendermint/version"
	rpcclient "github.com/cometbft/cometbft/rpc/client"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	rpctypes "github.com/cometbft/cometbft/rpc/jsonrpc/types"
	"github.com/cometbft/cometbft/types"
	"github.com/cometbft/cometbft/version"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/event"
	"github.com/starling-kv/starling/app/result"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/tx"
)

const fakeChainID = "fake-chain"

// fakeChain is an in-memory chain. Blocks are made when a transaction arrives, or by grow, and are
// signed by validators that can change.
type fakeChain struct {
	t  *testing.T
	mu sync.Mutex

	start      time.Time
	validators []types.PrivValidator // of the next block
	blocks     []*types.LightBlock   // blocks[i] has height i+1
	versions   []*avlstar.Version    // versions[h] is the state after block h
	nonces     map[string]uint64
	found      map[string]*ctypes.ResultTx
	events     []event.Event
	least      int64 // events of blocks below it are compacted
	held       bool  // transactions are accepted, but no block is made
	mempool    [][]byte
}

func newFakeChain(t *testing.T) *fakeChain {
	empty, err := avlstar.Empty(1000)
	require.NoError(t, err)
	genesis, err := empty.Apply([]avlstar.Change{{Key: []byte{0, 'p'}, Value: []byte("params")}})
	require.NoError(t, err)
	c := &fakeChain{t: t, start: time.Now().Add(-time.Hour), versions: []*avlstar.Version{genesis}, nonces: map[string]uint64{}, found: map[string]*ctypes.ResultTx{}}
	c.validators = fakeValidators("a", 4)
	c.grow(2)
	return c
}

func fakeValidators(name string, n int) []types.PrivValidator {
	all := make([]types.PrivValidator, n)
	for i := range all {
		all[i] = types.NewMockPVWithParams(ed25519.GenPrivKeyFromSecret(fmt.Appendf(nil, "%s%d", name, i)), false, false)
	}
	return all
}

func validatorSet(t *testing.T, signers []types.PrivValidator) *types.ValidatorSet {
	var list []*types.Validator
	for _, s := range signers {
		key, err := s.GetPubKey()
		require.NoError(t, err)
		list = append(list, types.NewValidator(key, 10))
	}
	return types.NewValidatorSet(list)
}

// genesis returns the genesis document of the chain.
func (c *fakeChain) genesis() *types.GenesisDoc {
	doc := &types.GenesisDoc{ChainID: fakeChainID, InitialHeight: 1, GenesisTime: c.start}
	for _, v := range c.blocks[0].ValidatorSet.Validators {
		doc.Validators = append(doc.Validators, types.GenesisValidator{PubKey: v.PubKey, Power: v.VotingPower})
	}
	return doc
}

// grow makes empty blocks.
func (c *fakeChain) grow(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range n {
		c.block(nil)
	}
}

// change replaces the validators, from the block after the next one.
func (c *fakeChain) change(to []types.PrivValidator) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sign(to, noTransactions)
	c.validators = to
	c.versions = append(c.versions, c.versions[len(c.versions)-1])
}

func (c *fakeChain) block(changes []avlstar.Change) {
	data := noTransactions
	if len(changes) > 0 {
		data = bytes.Repeat([]byte{1}, 32)
	}
	c.sign(c.validators, data)
	v, err := c.versions[len(c.versions)-1].Apply(changes)
	require.NoError(c.t, err)
	c.versions = append(c.versions, v)
}

// sign appends a header for the current state.
func (c *fakeChain) sign(next []types.PrivValidator, data []byte) {
	height := int64(len(c.blocks) + 1)
	appHash := c.versions[len(c.versions)-1].AppHash()
	var last types.BlockID
	if height > 1 {
		last = c.blocks[height-2].Commit.BlockID
	}
	c.blocks = append(c.blocks, signBlock(c.t, height, c.start.Add(time.Duration(height-1)*time.Second), last, appHash[:], data, c.validators, next))
}

func signBlock(t *testing.T, height int64, at time.Time, last types.BlockID, appHash, data []byte, signers, next []types.PrivValidator) *types.LightBlock {
	set := validatorSet(t, signers)
	header := &types.Header{
		Version: cmtversion.Consensus{Block: version.BlockProtocol}, ChainID: fakeChainID, Height: height, Time: at.UTC(), LastBlockID: last,
		ValidatorsHash: set.Hash(), NextValidatorsHash: validatorSet(t, next).Hash(), ConsensusHash: make([]byte, 32),
		AppHash: appHash, DataHash: data, ProposerAddress: set.Validators[0].Address,
	}
	id := types.BlockID{Hash: header.Hash(), PartSetHeader: types.PartSetHeader{Total: 1, Hash: make([]byte, 32)}}
	commit := &types.Commit{Height: height, BlockID: id, Signatures: make([]types.CommitSig, len(signers))}
	for _, s := range signers {
		key, err := s.GetPubKey()
		require.NoError(t, err)
		i, _ := set.GetByAddress(key.Address())
		vote, err := types.MakeVote(s, fakeChainID, i, height, 0, cmtproto.PrecommitType, id, header.Time)
		require.NoError(t, err)
		commit.Signatures[i] = vote.CommitSig()
	}
	return &types.LightBlock{SignedHeader: &types.SignedHeader{Header: header, Commit: commit}, ValidatorSet: set}
}

// execute executes a transaction like the application, but without grants: any account may write
// any key.
func (c *fakeChain) execute(raw []byte) *tx.Error {
	decoded, err := tx.Decode(raw, fakeChainID)
	if err != nil {
		var refused *tx.Error
		require.ErrorAs(c.t, err, &refused)
		return refused
	}
	var (
		result  tx.Result
		changes []avlstar.Change
		state   = c.versions[len(c.versions)-1]
		failed  *tx.Error
	)
	if decoded.Text != nil {
		changes = []avlstar.Change{{Key: decoded.Text.Key, Value: decoded.Text.Value}}
	} else {
		if next := c.nonces[string(decoded.Body.Account)]; decoded.Body.Nonce != next {
			return tx.Errorf(tx.CodeBadNonce, "nonce %d, next is %d", decoded.Body.Nonce, next)
		}
		c.nonces[string(decoded.Body.Account)]++
		for i := range decoded.Body.Operations {
			done, refused := c.operation(state, &decoded.Body.Operations[i], &changes)
			if refused != nil {
				failed = refused
			}
			result.Results = append(result.Results, done)
		}
	}
	done := abci.ExecTxResult{}
	if failed != nil {
		changes, done.Code, done.Log = nil, uint32(failed.Code), failed.Reason
	} else {
		done.Data, err = result.Marshal()
		require.NoError(c.t, err)
	}
	c.block(changes)
	height := int64(len(c.blocks))
	c.block(nil) // its header proves the state
	c.found[string(types.Tx(raw).Hash())] = &ctypes.ResultTx{Hash: types.Tx(raw).Hash(), Height: height, TxResult: done, Tx: raw}
	for i, change := range changes {
		e := event.Event{Height: height, Index: uint32(i), Tx: types.Tx(raw).Hash(), Kind: event.Put, Key: change.Key, Value: change.Value}
		if change.Value == nil {
			e.Kind = event.Delete
		}
		before, _, err := state.Get(change.Key)
		require.NoError(c.t, err)
		e.Previous = before
		c.events = append(c.events, e)
	}
	return nil
}

// operation executes an operation. It reads the state before the transaction.
func (c *fakeChain) operation(state *avlstar.Version, op *tx.Operation, changes *[]avlstar.Change) (tx.OperationResult, *tx.Error) {
	get := func(key []byte) []byte {
		value, _, err := state.Get(key)
		require.NoError(c.t, err)
		return value
	}
	switch o := op.Op.(type) {
	case *tx.Operation_Put:
		*changes = append(*changes, avlstar.Change{Key: o.Put.Key, Value: o.Put.Value})
		return tx.OperationResult{Found: has(c.t, state, o.Put.Key)}, nil
	case *tx.Operation_Delete:
		*changes = append(*changes, avlstar.Change{Key: o.Delete.Key})
		return tx.OperationResult{Found: has(c.t, state, o.Delete.Key)}, nil
	case *tx.Operation_Read:
		value := get(o.Read.Key)
		return tx.OperationResult{Found: value != nil, Value: value}, nil
	case *tx.Operation_ReadRange:
		var result tx.OperationResult
		for kv, err := range state.Ascend(o.ReadRange.Start, o.ReadRange.End) {
			require.NoError(c.t, err)
			result.Found, result.Entries = true, append(result.Entries, tx.KeyValue{Key: kv.Key, Value: kv.Value})
		}
		return result, nil
	case *tx.Operation_CompareAndPut:
		value := get(o.CompareAndPut.Key)
		*changes = append(*changes, avlstar.Change{Key: o.CompareAndPut.Key, Value: o.CompareAndPut.Value})
		if !slices.Equal(value, o.CompareAndPut.Expected) {
			return tx.OperationResult{}, tx.Errorf(tx.CodeCompareFailed, "other value")
		}
		return tx.OperationResult{Found: value != nil}, nil
	case *tx.Operation_Txn:
		result, ran := tx.OperationResult{Succeeded: true}, 0
		for i := range o.Txn.Compares {
			if !o.Txn.Compares[i].Holds(get(o.Txn.Compares[i].Key)) {
				result.Succeeded, ran = false, 1
			}
		}
		for i := range o.Txn.Branches()[ran] {
			inner, _ := c.operation(state, &o.Txn.Branches()[ran][i], changes)
			result.Results = append(result.Results, inner)
		}
		return result, nil
	}
	return tx.OperationResult{}, tx.Errorf(tx.CodeNotAdmin, "nobody is")
}

// fakeNode serves a chain. lie can change every answer before it is sent, or replace it by an
// error. The other fields are guarded by the chain's mutex.
type fakeNode struct {
	chain *fakeChain
	name  string
	lie   func(answer any) error

	lag     int           // number of blocks that are missing
	delay   time.Duration // duration of each answer
	stopped chan struct{} // the node answers nothing until it is closed
	down    error         // result of every call, if not nil
	old     bool          // it cannot be asked for results
	eager   bool          // it answers from the state of its last block, which no header proves yet
	calls   int           // number of calls

	// What it does before it has all blocks: "blocks": it accepts no transactions; "joining": it
	// serves only its status.
	catches string

	watchers int   // number of requests for events
	least    int64 // events of blocks below it are missing
}

var _ RPC = (*fakeNode)(nil)

func (n *fakeNode) Remote() string { return n.name }

// change changes the node while it may be in use.
func (n *fakeNode) change(f func()) {
	n.chain.mu.Lock()
	defer n.chain.mu.Unlock()
	f()
}

// lies makes lie change the node's answers, while the node may be in use.
func (n *fakeNode) lies(lie func(answer any) error) { n.change(func() { n.lie = lie }) }

func (n *fakeNode) head() int { return len(n.chain.blocks) - n.lag }

func answer[T any](ctx context.Context, n *fakeNode, make func() (T, error)) (T, error) {
	var none T
	n.chain.mu.Lock()
	n.calls++
	delay, stopped := n.delay, n.stopped
	n.chain.mu.Unlock()
	if stopped != nil {
		select {
		case <-stopped:
		case <-ctx.Done():
		}
	}
	if delay > 0 {
		_ = sleep.For(ctx, delay)
	}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	n.chain.mu.Lock()
	defer n.chain.mu.Unlock()
	if n.down != nil {
		return none, n.down
	}
	_, status := any(none).(*ctypes.ResultStatus)
	_, broadcast := any(none).(*ctypes.ResultBroadcastTx)
	switch {
	case n.catches == "blocks" && broadcast:
		return none, catchingUp
	case n.catches == "joining" && !status:
		return none, callMissingError
	}
	a, err := make()
	if err != nil {
		return none, err
	}
	if n.lie != nil {
		if err := n.lie(a); err != nil {
			return none, err
		}
	}
	return a, nil
}

func (n *fakeNode) Status(ctx context.Context) (*ctypes.ResultStatus, error) {
	return answer(ctx, n, func() (*ctypes.ResultStatus, error) {
		return &ctypes.ResultStatus{
			NodeInfo: p2p.DefaultNodeInfo{Network: fakeChainID}, SyncInfo: ctypes.SyncInfo{LatestBlockHeight: int64(n.head()), CatchingUp: n.catches != ""},
		}, nil
	})
}

func (n *fakeNode) ABCIQueryWithOptions(ctx context.Context, path string, data cmtbytes.HexBytes, opts rpcclient.ABCIQueryOptions) (*ctypes.ResultABCIQuery, error) {
	if path == result.Path && !n.old {
		return n.result(ctx, data)
	}
	return answer(ctx, n, func() (*ctypes.ResultABCIQuery, error) {
		c := n.chain
		height := opts.Height
		if height == 0 {
			height = int64(n.head()) - 1
			if n.eager {
				height++
			}
		}
		if height >= int64(len(c.versions)-n.lag) {
			return &ctypes.ResultABCIQuery{Response: abci.ResponseQuery{Code: uint32(tx.CodeUnknownHeight), Log: "too high"}}, nil
		}
		v := c.versions[height]
		r := abci.ResponseQuery{Height: height, Key: data}
		switch path {
		case "/key":
			value, _, err := v.Get(data)
			require.NoError(c.t, err)
			r.Value = value
			p, err := v.Prove(data)
			require.NoError(c.t, err)
			if opts.Prove {
				r.ProofOps = &crypto.ProofOps{Ops: []crypto.ProofOp{{Type: avlstar.OpState, Key: data, Data: p.State}, {Type: avlstar.OpMap, Key: []byte(avlstar.MapKey), Data: p.Map}}}
			}
		case "/range":
			request := decodeRangeRequest(c.t, data)
			start, end, limit := request.Start, request.End, int(request.Limit)
			var rest []byte
			if request.Reverse {
				all, _, _, err := v.ProveRange(start, end, 1<<20)
				require.NoError(c.t, err)
				if len(all) > limit {
					start = all[len(all)-limit].Key
					rest = start
				}
			}
			entries, next, p, err := v.ProveRange(start, end, limit)
			require.NoError(c.t, err)
			if rest != nil {
				next = rest
			}
			r.Value = encodeRange(request, entries, next)
			if opts.Prove {
				r.ProofOps = &crypto.ProofOps{Ops: []crypto.ProofOp{{Type: avlstar.OpRange, Key: start, Data: p.Tree}, {Type: avlstar.OpMap, Key: []byte(avlstar.MapKey), Data: p.Map}}}
			}
		case "/nonce":
			r.Value = nonceBytes(c.nonces[string(data)] + uint64(len(c.mempool)))
		case event.Path:
			n.watchers++
			r.Value = n.watched(data)
		default:
			r.Code, r.Log = uint32(tx.CodeUnknownPath), "no such path"
		}
		return &ctypes.ResultABCIQuery{Response: r}, nil
	})
}

// result waits for the result of a transaction.
func (n *fakeNode) result(ctx context.Context, data []byte) (*ctypes.ResultABCIQuery, error) {
	r, err := result.DecodeRequest(data)
	require.NoError(n.chain.t, err)
	for until := time.Now().Add(time.Duration(r.WaitMS) * time.Millisecond); ; {
		found, err := answer(ctx, n, func() (*ctypes.ResultTx, error) { return n.chain.found[string(r.ID[:])], nil })
		if err != nil {
			return nil, err
		}
		res := &ctypes.ResultABCIQuery{Response: abci.ResponseQuery{Key: data}}
		if found != nil {
			res.Response.Value, err = (&abci.TxResult{Height: found.Height, Result: found.TxResult}).Marshal()
			require.NoError(n.chain.t, err)
		}
		if found != nil || !time.Now().Before(until) {
			return res, nil
		}
		if err := sleep.For(ctx, time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func (n *fakeNode) BroadcastTxSync(ctx context.Context, raw types.Tx) (*ctypes.ResultBroadcastTx, error) {
	return answer(ctx, n, func() (*ctypes.ResultBroadcastTx, error) {
		c := n.chain
		if _, known := c.found[string(raw.Hash())]; known || slices.ContainsFunc(c.mempool, func(b []byte) bool { return slices.Equal(b, raw) }) {
			return nil, rpcError("tx already exists in cache")
		}
		if c.held {
			c.mempool = append(c.mempool, raw)
			return &ctypes.ResultBroadcastTx{Hash: raw.Hash()}, nil
		}
		return c.executed(raw), nil
	})
}

// executed returns the node's answer to a transaction that is executed at once.
func (c *fakeChain) executed(raw types.Tx) *ctypes.ResultBroadcastTx {
	if refused := c.execute(raw); refused != nil {
		return &ctypes.ResultBroadcastTx{Code: uint32(refused.Code), Log: refused.Reason}
	}
	return &ctypes.ResultBroadcastTx{Hash: raw.Hash()}
}

// release puts the held transactions into blocks.
func (c *fakeChain) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = false
	for _, raw := range c.mempool {
		require.Nil(c.t, c.execute(raw))
	}
	c.mempool = nil
}

func (n *fakeNode) Tx(ctx context.Context, hash []byte, _ bool) (*ctypes.ResultTx, error) {
	return answer(ctx, n, func() (*ctypes.ResultTx, error) {
		if found, ok := n.chain.found[string(hash)]; ok {
			return found, nil
		}
		return nil, rpcError(fmt.Sprintf("tx (%X) not found", hash))
	})
}

func (n *fakeNode) at(height *int64) (*types.LightBlock, error) {
	blocks := n.chain.blocks
	first := blocks[0].Height
	if *height < first {
		return blocks[0], nil // a copy that lie may change
	}
	if *height < first+int64(n.head()) {
		return blocks[*height-first], nil
	}
	return nil, rpcError(fmt.Sprintf("height %d must be less than or equal to the current blockchain height %d", *height, n.head()))
}

func (n *fakeNode) Commit(ctx context.Context, height *int64) (*ctypes.ResultCommit, error) {
	return answer(ctx, n, func() (*ctypes.ResultCommit, error) {
		b, err := n.at(height)
		if err != nil {
			return nil, err
		}
		header := *b.Header // a change by lie must not affect other nodes
		return &ctypes.ResultCommit{SignedHeader: types.SignedHeader{Header: &header, Commit: b.Commit.Clone()}, CanonicalCommit: true}, nil
	})
}

func (n *fakeNode) Validators(ctx context.Context, height *int64, page, perPage *int) (*ctypes.ResultValidators, error) {
	return answer(ctx, n, func() (*ctypes.ResultValidators, error) {
		b, err := n.at(height)
		if err != nil {
			return nil, err
		}
		all := b.ValidatorSet.Copy().Validators
		from := min((*page-1)**perPage, len(all))
		part := all[from:min(from+*perPage, len(all))]
		return &ctypes.ResultValidators{BlockHeight: *height, Validators: part, Count: len(part), Total: len(all)}, nil
	})
}

// watched answers a request for events of the blocks below the node's last one: events are
// published with the header that proves their state.
func (n *fakeNode) watched(data []byte) []byte {
	r, err := event.DecodeRequest(data)
	require.NoError(n.chain.t, err)
	head := int64(n.head()) - 1
	a := event.Answer{Next: r.From, Head: head, Least: max(n.chain.least, n.least, 1)}
	if r.From.Height == 0 {
		a.Next = Token{Height: head + 1}
	}
	if a.Compacted(r.From) {
		return a.Encode()
	}
	left := int(r.MaxBytes)
	for _, e := range n.chain.events {
		if at := (Token{Height: e.Height, Index: e.Index}); !at.Before(a.Next) && e.Height <= head && r.Keys.Contains(e.Key) {
			if !r.Previous {
				e.Previous = nil
			}
			size := len(e.Key) + len(e.Value) + len(e.Previous) + 64
			if left -= size; left < 0 && r.MaxBytes > 0 && len(a.Events) > 0 {
				a.Next = a.Events[len(a.Events)-1].Token()
				return a.Encode()
			}
			a.Events = append(a.Events, e)
		}
	}
	if a.Next.Height <= head {
		a.Next = Token{Height: head + 1}
	}
	return a.Encode()
}

func rpcError(text string) error {
	return &rpctypes.RPCError{Code: -32603, Message: "Internal error", Data: text}
}

// callMissingError is the answer of a node that does not serve a call.
var callMissingError = &rpctypes.RPCError{Code: -32601, Message: "Method not found"}

var (
	// Lost in transit, with unknown effect.
	errLost = errors.New("EOF")
	errDial = &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("refused")} // nothing was sent
)

func has(t testing.TB, v *avlstar.Version, key []byte) bool {
	t.Helper()
	ok, err := v.Has(key)
	require.NoError(t, err)
	return ok
}
