package app

import (
	"context"
	"slices"

	abci "github.com/cometbft/cometbft/abci/types"
)

// ListSnapshots, OfferSnapshot, LoadSnapshotChunk and ApplySnapshotChunk call the methods of
// Snapshots. Without Snapshots, nothing is offered and nothing is accepted.
//
// ListSnapshots omits a snapshot until two more blocks are committed, if it can list an older one.
// CometBFT's state sync needs the headers of these blocks, and a joiner that asks too early refuses
// the snapshot for ever. If blocks follow each other slowly, it would always find the newest one
// too early.
func (a *App) ListSnapshots(ctx context.Context, req *abci.RequestListSnapshots) (*abci.ResponseListSnapshots, error) {
	s := a.snapshots.Load()
	if s == nil {
		return &abci.ResponseListSnapshots{}, nil
	}
	list, err := (*s).ListSnapshots(ctx, req)
	if err != nil {
		return nil, err
	}
	height := uint64(a.Height())
	followed := func(s *abci.Snapshot) bool { return s.Height+2 <= height }
	if i := slices.IndexFunc(list.Snapshots, followed); i > 0 {
		list.Snapshots = list.Snapshots[i:] // the newest come first
	}
	return list, nil
}

// OfferSnapshot: see ListSnapshots.
func (a *App) OfferSnapshot(ctx context.Context, req *abci.RequestOfferSnapshot) (*abci.ResponseOfferSnapshot, error) {
	if s := a.snapshots.Load(); s != nil {
		return (*s).OfferSnapshot(ctx, req)
	}
	return &abci.ResponseOfferSnapshot{Result: abci.ResponseOfferSnapshot_ABORT}, nil
}

// LoadSnapshotChunk: see ListSnapshots.
func (a *App) LoadSnapshotChunk(ctx context.Context, req *abci.RequestLoadSnapshotChunk) (*abci.ResponseLoadSnapshotChunk, error) {
	if s := a.snapshots.Load(); s != nil {
		return (*s).LoadSnapshotChunk(ctx, req)
	}
	return &abci.ResponseLoadSnapshotChunk{}, nil
}

// ApplySnapshotChunk: see ListSnapshots.
func (a *App) ApplySnapshotChunk(ctx context.Context, req *abci.RequestApplySnapshotChunk) (*abci.ResponseApplySnapshotChunk, error) {
	if s := a.snapshots.Load(); s != nil {
		return (*s).ApplySnapshotChunk(ctx, req)
	}
	return &abci.ResponseApplySnapshotChunk{Result: abci.ResponseApplySnapshotChunk_ABORT}, nil
}
