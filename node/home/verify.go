package home

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"strconv"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/treestore"
)

// VerifiedState is a state on disk whose recomputed root equals the stored one.
type VerifiedState struct {
	Folder  string `json:"folder"`
	Height  int64  `json:"height"`
	AppHash string `json:"app_hash"`
	ChainID string `json:"chain_id"`
	Keys    uint64 `json:"keys"`
	Bytes   uint64 `json:"bytes"` // total of keys and values
	// Header is the height of the header with the app hash; 0: neither the blocks nor CometBFT's
	// state have it.
	Header int64 `json:"header"`
}

// Verification is the result of Verify.
type Verification struct {
	Sharded   bool            `json:"sharded,omitempty"` // storage nodes keep the state
	State     *VerifiedState  `json:"state"`             // nil: none
	Snapshots []VerifiedState `json:"snapshots,omitempty"`
	Blocks    *VerifiedBlocks `json:"blocks,omitempty"` // nil: no block zone
}

// VerifiedBlocks describes the tables of the block zone, all of whose checksums are right.
type VerifiedBlocks struct {
	Folder string `json:"folder"`
	Tables int    `json:"tables"`
	Bytes  uint64 `json:"bytes"`
}

// VerifyOptions configures a verification.
type VerifyOptions struct {
	Snapshots bool // also verify the stored snapshots
	// Progress is called with the number of keys read in a folder. total is an estimate.
	Progress func(folder string, done, total uint64)
	// BlocksProgress is called with the number of bytes read from the block zone.
	BlocksProgress func(folder string, done, total uint64)
}

// Verify reads every key of the state on disk, recomputes the root, and compares it with the stored
// one and with the one in the next block's header. In the block zone it checks all checksums. In
// the home of a sharded node it checks only the block zone. For each damaged part, the error wraps
// ErrDamaged and names the folder, the file if it is known, and the fix. The result then still
// contains the intact parts.
func Verify(ctx context.Context, conf *config.Config, o VerifyOptions) (result Verification, err error) {
	d, err := openOffline(conf, true)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if d.sharded {
		result.Sharded = true
		return result, d.verifyBlocks(ctx, o, &result)
	}
	if d.state == nil {
		return result, fmt.Errorf("%w: %q does not exist", ErrNoData, config.StateDir(d.dataDir()))
	}
	var errs []error
	for _, part := range []func(context.Context, VerifyOptions, *Verification) error{d.verifyState, d.verifyPins, d.verifyBlocks} {
		err := part(ctx, o, &result)
		if ctx.Err() != nil {
			return result, ctx.Err()
		}
		errs = append(errs, err) // the other parts may be intact
	}
	return result, errors.Join(errs...)
}

func (d *offline) verifyState(ctx context.Context, o VerifyOptions, result *Verification) error {
	meta, ok := d.state.Meta()
	if !ok {
		return nil
	}
	state, err := d.verify(ctx, d.state.Scan(), config.StateDir(d.dataDir()), meta, o)
	switch {
	case errors.Is(err, treestore.ErrNotTheState):
		return treestore.Damaged(err)
	case err != nil:
		return err
	}
	result.State = &state
	return nil
}

func (d *offline) verifyPins(ctx context.Context, o VerifyOptions, result *Verification) error {
	if !o.Snapshots {
		return nil
	}
	errs := d.state.UnusablePins()
	for _, pin := range d.state.Pins() {
		state, err := d.verifyPin(ctx, pin.Height, o)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil: // the other snapshots may be intact
			errs = append(errs, err)
		default:
			result.Snapshots = append(result.Snapshots, state)
		}
	}
	return errors.Join(errs...)
}

func (d *offline) verifyBlocks(ctx context.Context, o VerifyOptions, result *Verification) error {
	if d.databases == nil || d.databases.BlockZone() == nil {
		return nil
	}
	folder := config.BlocksDir(d.dataDir())
	tables, err := d.databases.BlockZone().Verify(ctx, func(done, total uint64) {
		if o.BlocksProgress != nil {
			o.BlocksProgress(folder, done, total)
		}
	})
	result.Blocks = &VerifiedBlocks{folder, tables.Count, tables.Bytes}
	return err
}

// verifyPin verifies a stored snapshot.
func (d *offline) verifyPin(ctx context.Context, height int64, o VerifyOptions) (_ VerifiedState, err error) {
	folder := filepath.Join(config.SnapshotsDir(d.dataDir()), strconv.FormatInt(height, 10))
	pin, err := d.state.OpenPin(height)
	if err != nil {
		return VerifiedState{}, err
	}
	defer func() { err = errors.Join(err, pin.Close()) }()
	meta, err := pin.Meta()
	if err != nil {
		return VerifiedState{}, err
	}
	state, err := d.verify(ctx, pin.Scan(), folder, meta, o)
	if errors.Is(err, treestore.ErrNotTheState) {
		err = fmt.Errorf("the snapshot is %w: %w: remove that folder; the state itself is in another folder", ErrDamaged, err)
	}
	return state, err
}

// verify reads one state.
func (d *offline) verify(
	ctx context.Context, leaves iter.Seq2[avlstar.Leaf, error], folder string, meta storage.Meta, o VerifyOptions,
) (VerifiedState, error) {
	total, err := d.state.EstimateKeys()
	if err != nil {
		return VerifiedState{}, err
	}
	v, err := treestore.Recompute(ctx, meta, leaves, func(done uint64) {
		if o.Progress != nil {
			o.Progress(folder, done, max(done, total))
		}
	})
	switch {
	case errors.Is(err, treestore.ErrNotTheState):
		return VerifiedState{}, fmt.Errorf("%w (folder %q)", err, folder)
	case err != nil:
		return VerifiedState{}, err
	}
	defer v.Release()
	hash := v.AppHash()
	state := VerifiedState{
		Folder: folder, Height: meta.Height, AppHash: fmt.Sprintf("%X", hash[:]), ChainID: meta.ChainID, Keys: v.Len(), Bytes: v.Root().Bytes,
	}
	named, at, err := d.appHashAfter(meta.Height)
	if err != nil {
		return VerifiedState{}, err
	}
	if named != nil && !bytes.Equal(named, hash[:]) {
		return VerifiedState{}, fmt.Errorf("%w: the state at height %d in %q has app hash %s, but the network's is %X (header %d)", treestore.ErrNotTheState, meta.Height, folder, hash, named, at)
	}
	state.Header = at
	return state, nil
}

// appHashAfter returns the app hash in the header after height, or in CometBFT's state if height is
// the last one, and the height of that header. nil: neither exists.
func (d *offline) appHashAfter(height int64) (hash []byte, header int64, err error) {
	defer func() {
		if cause := recover(); cause != nil { // CometBFT panics when it cannot read
			err = comet.Panicked(cause)
		}
	}()
	if d.blocks == nil {
		return nil, 0, nil
	}
	if meta := d.blocks.LoadBlockMeta(height + 1); meta != nil {
		return meta.Header.AppHash, height + 1, nil
	}
	state, err := d.comet.Load()
	if err != nil {
		return nil, 0, fmt.Errorf("CometBFT's state database: %w", err)
	}
	if state.LastBlockHeight == height && height > 0 {
		return state.AppHash, height + 1, nil
	}
	if last := d.blocks.Height(); last > 0 && height > last {
		return nil, 0, fmt.Errorf("%w: the state is at height %d, but the blocks end at %d: restore the right blocks", ErrDamaged, height, last)
	}
	return nil, 0, nil
}
