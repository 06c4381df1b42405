package serve

import (
	dbm "github.com/cosmos/cosmos-db"

	"github.com/starling-kv/starling/cosmos/nodedb"
)

// ErrReleased is what reads of a snapshot that was released fail with.
var ErrReleased = errReleased

// Freeze takes the snapshot of a database.
func Freeze(db dbm.DB) (snapshot nodedb.DB, release func() error, err error) {
	f, err := freeze(db)
	if err != nil {
		return nil, nil, err
	}
	return f, f.release, nil
}
