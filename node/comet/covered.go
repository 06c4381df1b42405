package comet

import (
	"errors"

	dbm "github.com/cometbft/cometbft-db"
	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/storage/blocks"
)

// provideCovered is Provide for an Executor, which executes one block after another. In the block
// zone, its writes of results, states and indexes are not synced, because SaveBlock of the next
// block syncs the same log (docs/decisions/0078-syncs-that-the-next-covers.md):
//
//	SaveBlock(H)     synced
//	results of H     ┐
//	state of H       ├ a crash leaves a prefix of them; without the state, CometBFT's handshake
//	indexes of H     ┘ executes and indexes block H again
//	SaveBlock(H+1)   synced, and with it all of the above
//
// The state zone calls Sync before its state of H becomes durable, since the handshake then needs
// the results of H. The evidence pool syncs its writes, because the handshake executes blocks
// without it. Deletions stay synced: nothing would repeat a lost one.
func (d *Databases) provideCovered(ctx *cfg.DBContext) (dbm.DB, error) {
	db, err := d.Provide(ctx)
	if err != nil || ctx.Config.DBBackend != config.BlockZoneBackend {
		return db, err
	}
	switch ctx.ID {
	case "state", "tx_index":
		return covered{db}, nil
	case "evidence":
		return synced{db}, nil
	}
	return db, nil
}

// Sync makes CometBFT's earlier writes durable. After Close it does nothing: Close did.
func (d *Databases) Sync() error {
	zone := d.BlockZone()
	if zone == nil {
		return nil
	}
	if err := zone.Sync(); !errors.Is(err, blocks.ErrClosed) {
		return err
	}
	return nil // the zone's Close makes its writes durable before Sync returns
}

// covered is a database whose synced writes are covered by a later sync, except deletions.
type covered struct{ dbm.DB }

func (d covered) SetSync(key, value []byte) error { return d.Set(key, value) }
func (d covered) NewBatch() dbm.Batch             { return &coveredBatch{Batch: d.DB.NewBatch()} }

type coveredBatch struct {
	dbm.Batch
	deletes bool
}

func (b *coveredBatch) Delete(key []byte) error {
	b.deletes = true
	return b.Batch.Delete(key)
}

func (b *coveredBatch) WriteSync() error {
	if b.deletes {
		return b.Batch.WriteSync()
	}
	return b.Write()
}

// synced is a database whose writes are durable when they return.
type synced struct{ dbm.DB }

func (d synced) Set(key, value []byte) error { return d.SetSync(key, value) }
func (d synced) Delete(key []byte) error     { return d.DeleteSync(key) }
