// Package serve answers requests of joining nodes (docs/spec/transport.md#methods). It reads only
// retained snapshots, so it never waits for a block, and no block waits for it.
package serve

import (
	"context"
	"errors"
	"runtime"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

// Options configure a Server. Functions may be nil.
type Options struct {
	Snapshots *statesync.Manager
	Blocks    func() (base, height int64) // first and last block of this node
	Peers     func() []transport.Address  // other serving nodes; the first MaxPeers are sent
	Genesis   []byte                      // contents of the file; empty: not served
	// Parts: this node may have parts of snapshots and answers MethodParts.
	Parts bool
	// Making limits concurrent expensive answers, across all servers that share it: its capacity is
	// the number of processors that they may use. nil: all but one, for this server alone.
	Making chan struct{}
}

// Server answers the requests of joining nodes.
type Server struct{ o Options }

// New returns a Server.
func New(o Options) *Server {
	if o.Making == nil {
		o.Making = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1))
	}
	return &Server{o}
}

// Register registers the server's handlers.
func (s *Server) Register(mux *transport.Mux) {
	handle := func(method transport.Method, f func(body []byte) ([]byte, error)) {
		mux.Handle(method, transport.HandlerFunc(func(_ context.Context, r transport.Request) ([]byte, error) { return f(r.Body) }))
	}
	costly := func(f func(body []byte) ([]byte, error)) transport.Handler {
		return transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
			select {
			case s.o.Making <- struct{}{}:
				defer func() { <-s.o.Making }()
				return f(r.Body)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
	}
	handle(protocol.MethodStatus, s.status)
	handle(protocol.MethodCommitment, s.commitment)
	handle(protocol.MethodManifest, s.manifest)
	mux.Handle(protocol.MethodChunk, transport.Weighed(costly(s.chunk), s.weighChunk))
	mux.Handle(protocol.MethodSubManifest, costly(s.subManifest))
	handle(protocol.MethodPeers, s.peers)
	handle(protocol.MethodGenesis, s.genesis)
	handle(protocol.MethodParts, s.parts)
}

func (s *Server) status([]byte) ([]byte, error) {
	var status protocol.Status
	if s.o.Blocks != nil {
		status.Base, status.Height = s.o.Blocks()
	}
	status.Snapshots = s.o.Snapshots.Heights()
	return status.Encode(), nil
}

// find returns the snapshot of a height, which the caller releases, or transport.ErrGone.
func (s *Server) find(height int64) (*statesync.Served, error) {
	served, ok := s.o.Snapshots.Serve(height)
	if !ok {
		return nil, transport.ErrGone
	}
	return served, nil
}

func (s *Server) commitment(body []byte) ([]byte, error) {
	height, err := protocol.DecodeHeight(body)
	if err != nil {
		return nil, errors.Join(transport.ErrRefused, err)
	}
	served, err := s.find(height)
	if err != nil {
		return nil, err
	}
	defer served.Release()
	return served.Commitment().Encode(), nil
}

func (s *Server) manifest(body []byte) ([]byte, error) {
	r, err := protocol.DecodeManifestRequest(body)
	if err != nil {
		return nil, errors.Join(transport.ErrRefused, err)
	}
	served, err := s.find(r.Height)
	if err != nil {
		return nil, err
	}
	defer served.Release()
	all := served.Manifest()
	rest := all[min(r.Offset, uint64(len(all))):]
	n := min(uint64(r.Length), uint64(len(rest)))
	return rest[:n:n], nil
}

func (s *Server) chunk(body []byte) ([]byte, error) {
	r, err := protocol.DecodeChunkRequest(body)
	if err != nil {
		return nil, errors.Join(transport.ErrRefused, err)
	}
	served, err := s.find(r.Height)
	if err != nil {
		return nil, err
	}
	defer served.Release()
	from, to := uint64(r.Offset), uint64(r.Offset)+uint64(r.Length)
	if n, ok := served.ChunkBytes(r.K); !ok || from == to || to > n {
		return nil, transport.ErrRefused
	}
	if !served.Has(r.K) {
		return nil, transport.ErrGone
	}
	data, err := served.ChunkRange(r.K, from, to)
	if err != nil {
		return nil, notHere(err)
	}
	return data, nil
}

// weighChunk returns the number of bytes processed to answer a request for a chunk or a range of
// one.
func (s *Server) weighChunk(request transport.Request) int64 {
	r, err := protocol.DecodeChunkRequest(request.Body)
	if err != nil {
		return 0
	}
	served, err := s.find(r.Height)
	if err != nil {
		return 0
	}
	defer served.Release()
	if !served.Has(r.K) {
		return 0
	}
	return int64(served.RangeCost(r.K, uint64(r.Offset), uint64(r.Offset)+uint64(r.Length)))
}

func (s *Server) subManifest(body []byte) ([]byte, error) {
	r, err := protocol.DecodeSubManifestRequest(body)
	if err != nil {
		return nil, errors.Join(transport.ErrRefused, err)
	}
	served, err := s.find(r.Height)
	if err != nil {
		return nil, err
	}
	defer served.Release()
	if c := served.Commitment(); r.K >= c.Chunks || uint64(r.Limit) >= c.ChunkBytes || uint64(r.Limit) < avlstar.MinCutBytes {
		return nil, transport.ErrRefused
	}
	if !served.Has(r.K) {
		return nil, transport.ErrGone
	}
	sub, err := served.SubManifest(r.K, uint64(r.Limit))
	if err != nil {
		return nil, notHere(err)
	}
	return sub, nil
}

// notHere adds ErrGone for a snapshot that is damaged on disk, since it is no longer served.
func notHere(err error) error {
	if errors.Is(err, statesync.ErrDamagedPin) {
		return errors.Join(transport.ErrGone, err)
	}
	return err
}

func (s *Server) peers([]byte) ([]byte, error) {
	if s.o.Peers == nil {
		return protocol.EncodePeers(nil), nil
	}
	return protocol.EncodePeers(s.o.Peers()), nil
}

func (s *Server) parts([]byte) ([]byte, error) {
	if !s.o.Parts {
		return nil, transport.ErrRefused
	}
	return protocol.EncodeParts(s.o.Snapshots.Parts()), nil
}

func (s *Server) genesis([]byte) ([]byte, error) {
	if len(s.o.Genesis) == 0 {
		return nil, transport.ErrGone
	}
	return s.o.Genesis, nil
}
