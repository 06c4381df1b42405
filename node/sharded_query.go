package node

import (
	"context"
	"encoding/json"

	abci "github.com/cometbft/cometbft/abci/types"
)

// PathStorage is the path of the query for the progress of a sharded state's storage nodes
// (docs/spec/queries.md). The response is unverified. Other nodes do not support it.
const PathStorage = "/storage"

// Query calls the application's Query, and answers PathStorage.
func (a *Application) Query(ctx context.Context, req *abci.RequestQuery) (*abci.ResponseQuery, error) {
	s, is := a.backing.(*sharded)
	if !is || req.Path != PathStorage {
		return a.App.Query(ctx, req)
	}
	value, err := json.Marshal(s.status())
	if err != nil {
		return nil, err
	}
	return &abci.ResponseQuery{Value: value, Height: a.Height()}, nil
}
