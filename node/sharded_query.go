package node

import (
	"context"
	"encoding/json"

	abci "github.com/cometbft/cometbft/abci/types"
)

// PathStorage is the path of the query that shows where the storage nodes of a sharded state stand
// (docs/spec/queries.md): a node's word, of which nothing is proved. Other nodes do not know it.
const PathStorage = "/storage"

// Query is that of the application, and answers PathStorage.
func (a *Application) Query(ctx context.Context, req *abci.RequestQuery) (*abci.ResponseQuery, error) {
	if a.sharded == nil || req.Path != PathStorage {
		return a.App.Query(ctx, req)
	}
	value, err := json.Marshal(a.sharded.status())
	if err != nil {
		return nil, err
	}
	return &abci.ResponseQuery{Value: value, Height: a.Height()}, nil
}
