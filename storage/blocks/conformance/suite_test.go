//go:build upstream

package db

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	dbm "github.com/cometbft/cometbft-db"

	"github.com/starling-kv/starling/storage/blocks"
	"github.com/starling-kv/starling/storage/sgc"
)

// Names of cometbft-db that its tests use.
type (
	BackendType = dbm.BackendType
	DB          = dbm.DB
	Iterator    = dbm.Iterator
)

const BoltDBBackend = dbm.BoltDBBackend

var (
	errKeyEmpty   = blocks.ErrKeyEmpty
	errValueNil   = blocks.ErrValueNil
	IteratePrefix = dbm.IteratePrefix
	NewPrefixDB   = dbm.NewPrefixDB
)

// backends are databases in a zone: alone, with a cache, and with neighbors on both sides.
var backends = map[BackendType]func() (DB, error){
	"alone":  func() (DB, error) { return open(blocks.Options{}) },
	"cached": func() (DB, error) { return open(blocks.Options{Cache: sgc.New(1 << 20)}) },
	"among neighbours": func() (DB, error) {
		return open(blocks.Options{Cache: sgc.New(1 << 20)}, "a", "tess", "tesu", "tes", "test2", "z")
	},
}

// open returns a database of a new zone, which the process leaves open.
func open(o blocks.Options, neighbours ...string) (DB, error) {
	o.FS = vfs.NewMem()
	z, err := blocks.Open("zone", o)
	if err != nil {
		return nil, err
	}
	for _, id := range neighbours {
		for _, key := range []string{"a", "b", "t", "test", "\x00", "\xff\xff"} {
			if err := z.DB(id).Set([]byte(key), []byte{20}); err != nil {
				return nil, err
			}
		}
	}
	return z.DB("test"), nil
}

// NewDB opens an empty database.
func NewDB(_ string, backend BackendType, _ string) (DB, error) { return backends[backend]() }

func newDB(t *testing.T) DB {
	t.Helper()
	db, err := NewDB("", "among neighbours", "")
	if err != nil {
		t.Fatal(err)
	}
	return db
}
