package rootmulti

import (
	"strings"

	errorsmod "cosmossdk.io/errors"
	"github.com/cosmos/cosmos-sdk/store/v2/rootmulti"
	"github.com/cosmos/cosmos-sdk/store/v2/types"
)

// Query implements types.Queryable. The path is "/", the store's name, and the path of the store's
// own Query. The last operator of a proof proves the store's root against the app hash.
func (rs *Store) Query(req *types.RequestQuery) (*types.ResponseQuery, error) {
	name, path, _ := strings.Cut(strings.TrimPrefix(req.Path, "/"), "/")
	path = "/" + path
	key, ours := rs.mounted[name]
	if ours = ours && strings.HasPrefix(req.Path, "/"); ours {
		inner := *req
		inner.Path = path
		req = &inner
	}
	var res *types.ResponseQuery
	var err error
	if ours {
		res, err = rs.stores[key].Query(req)
	} else {
		res, err = rs.sdkStore.Query(req)
	}
	if err != nil || !req.Prove || !rootmulti.RequireProof(path) {
		return res, err
	}
	if res.ProofOps == nil || len(res.ProofOps.Ops) == 0 {
		return &types.ResponseQuery{}, errorsmod.Wrapf(types.ErrInvalidRequest, "store %q cannot prove height %d: pruned, or not committed yet", name, res.Height)
	}
	info := rs.last.Load()
	if info == nil || info.Version != res.Height {
		if info, err = rs.GetCommitInfo(res.Height); err != nil {
			return &types.ResponseQuery{}, err
		}
	}
	if !ours {
		// For the last version, the SDK's multi-store uses its own commit info, which does not have
		// the Starling stores. Replace its operator.
		res.ProofOps.Ops = res.ProofOps.Ops[:len(res.ProofOps.Ops)-1]
	}
	res.ProofOps.Ops = append(res.ProofOps.Ops, info.ProofOp(name))
	return res, nil
}
