//go:build !pebbledb

package main

import (
	cmtdb "github.com/cometbft/cometbft-db"
	dbm "github.com/cosmos/cosmos-db"
)

// stockDB opens one of CometBFT's databases like a node. Pebble needs the build tag pebbledb;
// without it, stockDB opens Pebble as starling-iavl does.
func stockDB(name string, engine dbm.BackendType, dir string) (cmtdb.DB, error) {
	if engine == dbm.GoLevelDBBackend {
		return cmtdb.NewDB(name, cmtdb.GoLevelDBBackend, dir)
	}
	db, err := dbm.NewDB(name, engine, dir)
	return cometDB{db}, err
}
