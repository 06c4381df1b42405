package statesync

import (
	"context"
	"errors"
	"fmt"

	abci "github.com/cometbft/cometbft/abci/types"
)

// errWrongLength: the chunk's length differs from the manifest's.
type errWrongLength struct {
	got  int
	want uint64
}

func (e errWrongLength) Error() string { return fmt.Sprintf("%d bytes, want %d", e.got, e.want) }

// ApplySnapshotChunk answers the ABCI call. ACCEPT means only that the chunk was received.
// Verification runs concurrently; a later answer names a bad chunk in refetch_chunks and its sender
// in reject_senders. (RETRY would present the same bytes again. reject_senders alone would not
// refetch a chunk that was already delivered.)
func (m *Manager) ApplySnapshotChunk(ctx context.Context, req *abci.RequestApplySnapshotChunk) (*abci.ResponseApplySnapshotChunk, error) {
	m.receiving.Lock()
	defer m.receiving.Unlock()
	s := m.receiving.session
	if s == nil {
		m.log.Error("State sync: received a chunk without an accepted snapshot", "chunk", req.Index)
		return &abci.ResponseApplySnapshotChunk{Result: abci.ResponseApplySnapshotChunk_ABORT}, nil
	}
	a, err := s.present(ctx, job{req.Index, req.Chunk, req.Sender})
	if err != nil {
		return nil, err
	}
	resp := &abci.ResponseApplySnapshotChunk{
		Result: abci.ResponseApplySnapshotChunk_ACCEPT, RefetchChunks: a.refetch, RejectSenders: a.reject,
	}
	switch {
	case a.failed != nil:
		err := errors.Join(a.failed, m.endSession())
		m.log.Error("State sync cannot continue; the node stays empty", "err", err)
		resp.Result = abci.ResponseApplySnapshotChunk_ABORT
	case a.complete:
		resp.Result = m.finish(s)
	}
	return resp, nil
}

// finish commits the restored state. The caller holds m.receiving.
func (m *Manager) finish(s *session) abci.ResponseApplySnapshotChunk_Result {
	m.receiving.session = nil
	s.stop()
	v, err := s.restorer.Commit()
	switch {
	case errors.Is(err, ErrWrongInterval):
		m.log.Error("State sync: snapshot refused; the node stays empty", "height", s.restorer.height, "err", err)
		return abci.ResponseApplySnapshotChunk_REJECT_SNAPSHOT
	case err != nil:
		m.log.Error("State sync failed; the node stays empty", "height", s.restorer.height, "err", err)
		return abci.ResponseApplySnapshotChunk_ABORT
	}
	defer v.Release()
	s.summary()
	m.Committed(s.restorer.height, v) // it can be served at once
	return abci.ResponseApplySnapshotChunk_ACCEPT
}
