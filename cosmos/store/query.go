package store

import (
	"encoding/binary"
	"fmt"

	errorsmod "cosmossdk.io/errors"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	cmtprotocrypto "github.com/cometbft/cometbft/proto/tendermint/crypto"

	"github.com/starling-kv/starling/avlstar"
)

// Query implements types.Queryable with the paths of the SDK's IAVL store. "/key" returns the value
// of a key, with a proof if requested (see ProofRuntime). "/subspace" returns all pairs whose keys
// have a prefix. Height 0 means the version before the last, whose root is in the last header, or
// the last version if that one is not in memory. As with IAVL, a "/key" query for a version that is
// not in memory does not return an error: ErrNoVersion is in the response's Log.
func (s *Store) Query(req *types.RequestQuery) (*types.ResponseQuery, error) {
	if len(req.Data) == 0 {
		return &types.ResponseQuery{}, errorsmod.Wrap(types.ErrTxDecode, "query cannot be zero length")
	}
	res := &types.ResponseQuery{Height: s.queryHeight(req.Height), Key: req.Data}
	switch req.Path {
	case "/key":
		return res, s.queryKey(res, req.Prove)
	case "/subspace":
		return res, s.querySubspace(res)
	}
	return &types.ResponseQuery{}, errorsmod.Wrapf(types.ErrUnknownRequest, "unexpected query path: %v", req.Path)
}

func (s *Store) queryHeight(height int64) int64 {
	if height != 0 {
		return height
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	last := s.height()
	if _, ok := s.version(last - 1); ok {
		return last - 1
	}
	return last
}

func (s *Store) queryKey(res *types.ResponseQuery, prove bool) error {
	v, err := s.State(res.Height)
	if err != nil {
		res.Log = ErrNoVersion.Error()
		return nil //nolint:nilerr // the error is in res.Log
	}
	defer v.Release()
	if len(res.Key) > MaxKeyBytes {
		if prove {
			return errorsmod.Wrapf(types.ErrInvalidRequest, "absence of a key of %d bytes cannot be proved: the limit is %d bytes", len(res.Key), MaxKeyBytes)
		}
		return nil
	}
	res.Value = value(v, res.Key)
	if !prove {
		return nil
	}
	res.ProofOps, err = proofOps(v, res.Key)
	return err
}

func proofOps(v *avlstar.Version, key []byte) (*cmtprotocrypto.ProofOps, error) {
	p, err := v.Prove(key)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	ops := &cmtprotocrypto.ProofOps{}
	if len(p.State) > 0 { // otherwise the tree is empty
		ops.Ops = append(ops.Ops, cmtprotocrypto.ProofOp{Type: ProofOpState, Key: key, Data: p.State})
	}
	ops.Ops = append(ops.Ops, cmtprotocrypto.ProofOp{Type: types.ProofOpSimpleMerkleCommitment, Key: []byte(MapKey), Data: p.Map})
	return ops, nil
}

// querySubspace reads the current store and ignores the requested height, as the SDK's IAVL store
// does.
func (s *Store) querySubspace(res *types.ResponseQuery) error {
	it := types.KVStorePrefixIterator(s, res.Key)
	res.Value = []byte{}
	for ; it.Valid(); it.Next() {
		res.Value = appendPair(res.Value, it.Key(), it.Value())
	}
	return it.Close()
}

// appendPair appends one element of the SDK's message cosmos.store.internal.kv.v1beta1.Pairs, whose
// Go type cannot be imported: field 1 is a Pair, whose fields 1 and 2 are key and value.
func appendPair(b, key, value []byte) []byte {
	field := func(b []byte, number byte, content []byte) []byte {
		if len(content) == 0 {
			return b
		}
		b = binary.AppendUvarint(append(b, number<<3|2), uint64(len(content)))
		return append(b, content...)
	}
	return field(b, 1, field(field(nil, 1, key), 2, value))
}
