package blocks

import (
	"github.com/cockroachdb/pebble/v2"
	dbm "github.com/cometbft/cometbft-db"

	"github.com/starling-kv/starling/storage/seglog"
)

// batch is written atomically. It must be used by one goroutine.
type batch struct {
	d     *database
	batch *pebble.Batch // nil: written or closed

	group   seglog.Group // values to be stored in a segment
	outside []int        // the operations that set them; their values in batch are empty
	deletes bool         // the batch deletes parts, perhaps the last ones of a segment
}

var _ dbm.Batch = (*batch)(nil)

// NewBatch returns an empty batch.
func (d *database) NewBatch() dbm.Batch { return d.newBatch() }

func (d *database) newBatch() *batch {
	return &batch{d: d, batch: d.z.db.NewBatch()} // allowed even on a closed database
}

func (b *batch) Set(key, value []byte) error {
	switch {
	case len(key) == 0:
		return ErrKeyEmpty
	case value == nil:
		return ErrValueNil
	case b.batch == nil:
		return ErrBatchClosed
	}
	if b.d.outside(key, value) {
		b.outside = append(b.outside, int(b.batch.Count()))
		b.group.Add(b.d.key(key), value)
		value = nil
	}
	op := b.batch.SetDeferred(len(b.d.prefix)+len(key), len(value))
	copy(op.Key[copy(op.Key, b.d.prefix):], key)
	copy(op.Value, value)
	return b.d.z.folder.Err("write", op.Finish())
}

func (b *batch) Delete(key []byte) error {
	switch {
	case len(key) == 0:
		return ErrKeyEmpty
	case b.batch == nil:
		return ErrBatchClosed
	}
	b.deletes = b.deletes || b.d.isPart(key)
	op := b.batch.DeleteDeferred(len(b.d.prefix) + len(key))
	copy(op.Key[copy(op.Key, b.d.prefix):], key)
	return b.d.z.folder.Err("write", op.Finish())
}

func (b *batch) Write() error     { return b.write(false) }
func (b *batch) WriteSync() error { return b.write(true) }

func (b *batch) write(sync bool) error {
	if b.batch == nil {
		return ErrBatchClosed
	}
	if err := b.d.z.commit(b, sync); err != nil {
		return err
	}
	return b.Close()
}

// Close discards the batch, unless it was written.
func (b *batch) Close() error {
	if b.batch == nil {
		return nil
	}
	pb := b.batch
	b.batch = nil
	return b.d.z.folder.Err("write", pb.Close())
}
