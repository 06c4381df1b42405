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
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/treestore"
)

// VerifiedState is a state on disk whose recomputed root equals the one that was stored.
type VerifiedState struct {
	Folder  string `json:"folder"`
	Height  int64  `json:"height"`
	AppHash string `json:"app_hash"`
	ChainID string `json:"chain_id"`
	Keys    uint64 `json:"keys"`
	Bytes   uint64 `json:"bytes"` // of keys and values
	// Header is the height of the header that names the app hash; 0: neither the blocks nor
	// CometBFT's state have it.
	Header int64 `json:"header"`
}

// Verification is the result of Verify.
type Verification struct {
	State     *VerifiedState  `json:"state"` // nil: there is none
	Snapshots []VerifiedState `json:"snapshots,omitempty"`
}

// VerifyOptions say what to verify.
type VerifyOptions struct {
	Snapshots bool // the stored ones, too
	// Progress is called with the number of keys read in a folder. total is an estimate.
	Progress func(folder string, done, total uint64)
}

// Verify reads every key of the state on disk, recomputes the root, and compares it with the one
// that was stored and with the one that the block after it names. An error that wraps ErrDamaged
// names the folder, the file if it is known, and the remedy. The result then still contains what
// was good.
func Verify(ctx context.Context, conf *config.Config, o VerifyOptions) (result Verification, err error) {
	d, err := openOffline(conf, true)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if d.state == nil {
		return result, fmt.Errorf("%w: there is no %q", ErrNoData, config.StateDir(d.dataDir()))
	}
	total, err := d.state.EstimateKeys()
	if err != nil {
		return result, err
	}
	if meta, ok := d.state.Meta(); ok {
		state, err := d.verify(ctx, d.state.Scan(), config.StateDir(d.dataDir()), meta, total, o)
		switch {
		case errors.Is(err, treestore.ErrNotTheState):
			return result, treestore.Damaged(err)
		case err != nil:
			return result, err
		}
		result.State = &state
	}
	if !o.Snapshots {
		return result, nil
	}
	var errs []error
	for _, pin := range d.state.Pins() {
		state, err := d.verifyPin(ctx, pin.Height, total, o)
		switch {
		case ctx.Err() != nil:
			return result, ctx.Err()
		case err != nil: // the other snapshots may be good
			errs = append(errs, err)
		default:
			result.Snapshots = append(result.Snapshots, state)
		}
	}
	return result, errors.Join(errs...)
}

// verifyPin verifies a stored snapshot.
func (d *offline) verifyPin(ctx context.Context, height int64, total uint64, o VerifyOptions) (_ VerifiedState, err error) {
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
	state, err := d.verify(ctx, pin.Scan(), folder, meta, total, o)
	if errors.Is(err, treestore.ErrNotTheState) {
		err = fmt.Errorf("the snapshot is %w: %w: remove that folder; the state itself lies elsewhere", ErrDamaged, err)
	}
	return state, err
}

// verify reads one state.
func (d *offline) verify(
	ctx context.Context, leaves iter.Seq2[avlstar.Leaf, error], folder string, meta storage.Meta, total uint64, o VerifyOptions,
) (VerifiedState, error) {
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
		return VerifiedState{}, fmt.Errorf("%w: the state of height %d in %q has app hash %s, and the network's is %X (header %d)", treestore.ErrNotTheState, meta.Height, folder, hash, named, at)
	}
	state.Header = at
	return state, nil
}

// appHashAfter returns the app hash that the block after height names, or that CometBFT's state
// names if height is the last one, with the height of that header. nil: there is neither.
func (d *offline) appHashAfter(height int64) (hash []byte, header int64, err error) {
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
		return nil, 0, fmt.Errorf("%w: the state is at height %d, and the blocks end at %d: put the right blocks back", ErrDamaged, height, last)
	}
	return nil, 0, nil
}
