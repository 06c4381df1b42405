package statesync

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/avlstar"
)

// session is one sync, from an accepted offer to the last chunk. It tracks CometBFT's chunk queue,
// which it sees only through the presented chunks and the indices that it asks to be fetched again.
//
//	          presented            verified
//	absent ─────────────► pending ──────────► verified, final
//	  ▲                      │ bad
//	  └── named in an answer ┴─ finding: the sender is to be rejected
//	      (refetch_chunks)
type session struct {
	restorer *Restorer
	log      log.Logger
	metrics  *Metrics
	started  time.Time
	before   func() // called before each verification

	ctx    context.Context
	cancel context.CancelFunc
	jobs   chan job // at most as many raw chunks as workers are waiting
	wg     sync.WaitGroup

	mu struct {
		sync.Mutex
		changed   sync.Cond // a job or ctx is done
		chunks    []presence
		presented int       // chunks that the queue considers delivered
		inFlight  int       // jobs not yet done
		findings  []finding // not yet reported in an answer
		failed    error     // local failure
		progress  progress
	}
}

// presence is the state of a chunk in the queue. The restorer knows whether it is written.
type presence struct {
	presented bool
	pending   uint32 // copies being verified
}

type job struct {
	index  uint32
	data   []byte
	sender string
}

// finding is a chunk that does not match the manifest.
type finding struct {
	index  uint32
	sender string
}

// answer is the content of ApplySnapshotChunk's response.
type answer struct {
	refetch  []uint32
	reject   []string
	complete bool  // all chunks are verified
	failed   error // local failure
}

func (m *Manager) newSession(r *Restorer) *session {
	s := &session{
		restorer: r, log: m.log, metrics: m.opts.Metrics, started: time.Now(), before: m.opts.beforeVerify,
		jobs: make(chan job, m.opts.Workers),
	}
	s.ctx, s.cancel = context.WithCancel(m.ctx)
	s.mu.changed.L = &s.mu.Mutex
	s.mu.chunks = make([]presence, len(r.manifest.Entries))
	s.mu.progress = newProgress(r.manifest)
	s.metrics.restoring(len(s.mu.chunks))
	for range m.opts.Workers {
		s.wg.Go(s.work)
	}
	s.wg.Go(func() { s.report(m.opts.progressEvery) })
	s.log.Info("State sync: restoring", "height", r.height, "chunks", len(s.mu.chunks), "bytes", s.mu.progress.totalBytes)
	return s
}

// stop ends the workers and waits for them. Nothing reaches the restorer afterwards.
func (s *session) stop() {
	s.cancel()
	s.wg.Wait()
}

func (s *session) work() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case j := <-s.jobs:
			if s.before != nil {
				s.before()
			}
			fresh, err := s.restorer.Accept(j.index, j.data)
			s.done(j, fresh, err)
		}
	}
}

// done records the outcome of a job.
func (s *session) done(j job, fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.mu.chunks[j.index]
	c.pending--
	s.mu.inFlight--
	switch {
	case errors.Is(err, avlstar.ErrInvalidChunk):
		s.found(j, err)
	case err != nil:
		s.mu.failed = err
	case fresh:
		s.mu.progress.verified(len(j.data))
		s.metrics.chunkVerified(len(j.data))
	}
	s.mu.changed.Broadcast()
}

// found records a bad chunk. The caller holds s.mu.
func (s *session) found(j job, err error) {
	s.mu.findings = append(s.mu.findings, finding{j.index, j.sender})
	newPeer := s.mu.progress.rejected(j.sender)
	s.metrics.chunkRejected(newPeer)
	s.log.Info("State sync: bad chunk", "chunk", j.index, "sender", j.sender, "err", err)
}

// present accepts a chunk and returns the answer. It returns at once, unless the pool is full or
// this was the last chunk in the queue: the answer to the last chunk is the last chance to report
// bad chunks, so it waits for the pool.
func (s *session) present(ctx context.Context, j job) (answer, error) {
	if int64(j.index) >= int64(len(s.mu.chunks)) {
		// CometBFT itself refuses such chunks, so there is no index to fetch again.
		s.log.Error("State sync: chunk out of range", "chunk", j.index, "chunks", len(s.mu.chunks))
	} else if s.admit(j) {
		select {
		case s.jobs <- j:
		case <-ctx.Done():
			s.retract(j)
			return answer{}, ctx.Err()
		case <-s.ctx.Done():
			s.retract(j)
		}
	}
	return s.answer(ctx)
}

// admit records that the chunk was presented. It returns true if the chunk must be verified.
func (s *session) admit(j job) bool {
	want, missing := s.restorer.Want(j.index)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.mu.chunks[j.index]
	if !c.presented {
		c.presented = true
		s.mu.presented++
	}
	switch {
	case !missing:
		return false // a verified chunk stays, whatever arrives under its index
	case uint64(len(j.data)) != want:
		s.found(j, errWrongLength{len(j.data), want})
		return false
	}
	c.pending++
	s.mu.inFlight++
	return true
}

// retract undoes admit for a chunk that did not reach the pool.
func (s *session) retract(j job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.mu.chunks[j.index]
	c.pending--
	s.mu.inFlight--
	if s.lost(j.index) {
		c.presented = false
		s.mu.presented--
	}
}

// lost reports whether a presented chunk has no copy left that is written or being verified. The
// caller holds s.mu.
func (s *session) lost(k uint32) bool {
	_, missing := s.restorer.Want(k)
	c := &s.mu.chunks[k]
	return c.presented && c.pending == 0 && missing
}

func (s *session) answer(ctx context.Context) (answer, error) {
	wake := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mu.changed.Broadcast()
	}
	defer context.AfterFunc(ctx, wake)()
	defer context.AfterFunc(s.ctx, wake)()

	s.mu.Lock()
	defer s.mu.Unlock()
	for s.mu.presented == len(s.mu.chunks) && s.mu.inFlight > 0 && s.mu.failed == nil && ctx.Err() == nil && s.ctx.Err() == nil {
		s.mu.changed.Wait()
	}
	switch {
	case ctx.Err() != nil:
		return answer{}, ctx.Err()
	case s.mu.failed != nil:
		return answer{failed: s.mu.failed}, nil
	case s.ctx.Err() != nil:
		return answer{failed: errors.New("the node is stopping")}, nil
	}
	a := s.name()
	a.complete = s.mu.presented == len(s.mu.chunks) && s.restorer.Missing() == 0
	return a, nil
}

// name turns the findings into indices to fetch again and senders to reject. The caller holds s.mu.
func (s *session) name() (a answer) {
	for _, f := range s.mu.findings {
		if f.sender != "" && !slices.Contains(a.reject, f.sender) {
			a.reject = append(a.reject, f.sender)
		}
		// Do not refetch if another copy is written or being verified: if that copy is bad too, it
		// has its own finding.
		if s.lost(f.index) {
			s.mu.chunks[f.index].presented = false
			s.mu.presented--
			a.refetch = append(a.refetch, f.index)
		}
	}
	s.mu.findings = nil
	return a
}
