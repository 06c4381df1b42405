//go:build pebbledb

package main

import (
	cmtdb "github.com/cometbft/cometbft-db"
	dbm "github.com/cosmos/cosmos-db"
)

// stockDB opens one of CometBFT's databases like a node that was built with this tag.
func stockDB(name string, engine dbm.BackendType, dir string) (cmtdb.DB, error) {
	return cmtdb.NewDB(name, cmtdb.BackendType(engine), dir)
}
