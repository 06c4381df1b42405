package app

import (
	"context"

	abci "github.com/cometbft/cometbft/abci/types"
)

// ListSnapshots, OfferSnapshot, LoadSnapshotChunk and ApplySnapshotChunk call the methods of
// Snapshots. Without Snapshots, nothing is offered and nothing is accepted.
func (a *App) ListSnapshots(ctx context.Context, req *abci.RequestListSnapshots) (*abci.ResponseListSnapshots, error) {
	if s := a.snapshots.Load(); s != nil {
		return (*s).ListSnapshots(ctx, req)
	}
	return &abci.ResponseListSnapshots{}, nil
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
