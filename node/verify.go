package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"strconv"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage"
)

// VerifiedState is a state on disk whose root was recomputed and is what it was when it was stored.
type VerifiedState struct {
	Folder  string `json:"folder"`
	Height  int64  `json:"height"`
	AppHash string `json:"app_hash"`
	ChainID string `json:"chain_id"`
	Keys    uint64 `json:"keys"`
	Bytes   uint64 `json:"bytes"` // of keys and values
	// Header is the height of the header that names the app hash; 0: neither blocks nor CometBFT's state have it.
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
	// Progress is told of the keys of a folder; total is an estimate.
	Progress func(folder string, done, total uint64)
}

// Verify reads every key of the state on disk, recomputes the root, and compares it with the one that was stored and with the one that
// the block after it names. An error that wraps ErrDamaged names the folder, the file where it is known, and the way out. What was
// good is in the result even then.
func Verify(ctx context.Context, config *Config, o VerifyOptions) (result Verification, err error) {
	d, err := openOffline(config, true)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if d.state == nil {
		return result, fmt.Errorf("%w: there is no %s", ErrNoData, StateDir(d.dataDir()))
	}
	total, err := d.state.EstimateKeys()
	if err != nil {
		return result, err
	}
	if meta, ok := d.state.Meta(); ok {
		state, err := d.verify(ctx, d.state.Scan(), StateDir(d.dataDir()), meta, total, o)
		switch {
		case errors.Is(err, errNotTheState):
			return result, damaged(err)
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
		case err != nil: // the others may be good
			errs = append(errs, err)
		default:
			result.Snapshots = append(result.Snapshots, state)
		}
	}
	return result, errors.Join(errs...)
}

// verifyPin verifies a stored snapshot.
func (d *offline) verifyPin(ctx context.Context, height int64, total uint64, o VerifyOptions) (_ VerifiedState, err error) {
	folder := filepath.Join(SnapshotsDir(d.dataDir()), strconv.FormatInt(height, 10))
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
	if errors.Is(err, errNotTheState) {
		err = fmt.Errorf("the snapshot is %w: %w: remove that folder; the state itself lies elsewhere", ErrDamaged, err)
	}
	return state, err
}

// errNotTheState: what can be read is not what was stored.
var errNotTheState = errors.New("it is not what was stored")

// verify reads one state.
func (d *offline) verify(
	ctx context.Context, leaves iter.Seq2[storage.Leaf, error], folder string, meta storage.Meta, total uint64, o VerifyOptions,
) (VerifiedState, error) {
	var unread error
	// Only what lies above pages stays in memory, so that the state may be larger than that. Nobody asks for a page.
	v, err := avlstar.FromLeavesPaged(meta.ChunkBytes, avlstar.Paging{}, leavesUntil(ctx, leaves, &unread, func(done uint64) {
		if o.Progress != nil {
			o.Progress(folder, done, max(done, total))
		}
	}))
	switch {
	case unread != nil:
		return VerifiedState{}, unread
	case err != nil:
		return VerifiedState{}, fmt.Errorf("%w: %w", errNotTheState, err)
	}
	defer v.Release()
	hash := v.AppHash()
	if !bytes.Equal(hash[:], meta.AppHash) {
		return VerifiedState{}, fmt.Errorf("%w: the state of height %d in %s has app hash %s, it was %X when it was stored", errNotTheState, meta.Height, folder, hash, meta.AppHash)
	}
	state := VerifiedState{
		Folder: folder, Height: meta.Height, AppHash: fmt.Sprintf("%X", hash[:]), ChainID: meta.ChainID, Keys: v.Len(), Bytes: v.Root().Bytes,
	}
	named, at, err := d.appHashAfter(meta.Height)
	if err != nil {
		return VerifiedState{}, err
	}
	if named != nil && !bytes.Equal(named, hash[:]) {
		return VerifiedState{}, fmt.Errorf("%w: the state of height %d in %s has app hash %s, and the network's is %X (header %d)", errNotTheState, meta.Height, folder, hash, named, at)
	}
	state.Header = at
	return state, nil
}

// leavesUntil yields all leaves. When they cannot be read, or ctx ends, it yields the error and notes it.
func leavesUntil(
	ctx context.Context, leaves iter.Seq2[storage.Leaf, error], failed *error, progress func(done uint64),
) iter.Seq2[avlstar.Leaf, error] {
	return func(yield func(avlstar.Leaf, error) bool) {
		done := uint64(0)
		for leaf, err := range leaves {
			if done%(1<<12) == 0 && err == nil {
				progress(done)
				err = ctx.Err()
			}
			*failed = err
			if !yield(avlstar.Leaf(leaf), err) || err != nil {
				return
			}
			done++
		}
		progress(done)
	}
}

// appHashAfter is the app hash that the block after height names, or CometBFT's state where it is the last one, with the height of that
// header; nil where neither is there.
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
