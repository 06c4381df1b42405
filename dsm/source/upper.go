package source

import (
	"context"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
)

// otherNodes names those that are no storage nodes, in metrics.
const otherNodes dsm.Node = "others"

// Upper fetches what the app hash of the state after block height commits to, and the inner nodes
// that have fewer than depth others above them: each storage node has those of its ranges. The
// caller releases the result.
func (s *Source) Upper(ctx context.Context, height int64, appHash avlstar.Hash, depth int) (*avlstar.Partial, error) {
	return nil, errUpper
}
