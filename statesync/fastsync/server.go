package fastsync

import (
	"context"
	"errors"
	"runtime"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
)

// ServerOptions are what a Server answers from. Functions may be nil.
type ServerOptions struct {
	Snapshots *statesync.Manager
	Blocks    func() (base, height int64) // first and last block that this node has
	Peers     func() []transport.Address  // other nodes that serve; of many, the first are told
	Genesis   []byte                      // the file; empty: it is not served
	// Parts: of its snapshots this node may have a part only, and says so when it is asked.
	Parts bool
	// Making has one element for each answer that takes long to make, of whatever server: its
	// capacity is how many processors all of them may use. nil: all but one, for this server.
	Making chan struct{}
}

// Server answers what joining nodes ask. It reads pinned snapshots only, so that it never waits for
// a block, and no block waits for it.
type Server struct{ o ServerOptions }

// NewServer returns a Server.
func NewServer(o ServerOptions) *Server {
	if o.Making == nil {
		o.Making = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1))
	}
	return &Server{o}
}

// Register makes the server the handler of its methods.
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
	handle(MethodStatus, s.status)
	handle(MethodCommitment, s.commitment)
	handle(MethodManifest, s.manifest)
	mux.Handle(MethodChunk, transport.Weighed(costly(s.chunk), s.weighChunk))
	mux.Handle(MethodSubManifest, costly(s.subManifest))
	handle(MethodPeers, s.peers)
	handle(MethodGenesis, s.genesis)
	handle(MethodParts, s.parts)
}

func (s *Server) status([]byte) ([]byte, error) {
	var status Status
	if s.o.Blocks != nil {
		status.Base, status.Height = s.o.Blocks()
	}
	status.Snapshots = s.o.Snapshots.Heights()
	return status.encode(), nil
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
	height, err := decodeHeight(body)
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
	r, err := decodeManifestRequest(body)
	if err != nil {
		return nil, errors.Join(transport.ErrRefused, err)
	}
	served, err := s.find(r.height)
	if err != nil {
		return nil, err
	}
	defer served.Release()
	all := served.Manifest()
	rest := all[min(r.offset, uint64(len(all))):]
	n := min(uint64(r.length), uint64(len(rest)))
	return rest[:n:n], nil
}

func (s *Server) chunk(body []byte) ([]byte, error) {
	r, err := decodeChunkRequest(body)
	if err != nil {
		return nil, errors.Join(transport.ErrRefused, err)
	}
	served, err := s.find(r.height)
	if err != nil {
		return nil, err
	}
	defer served.Release()
	from, to := uint64(r.offset), uint64(r.offset)+uint64(r.length)
	if n, ok := served.ChunkBytes(r.k); !ok || from == to || to > n {
		return nil, transport.ErrRefused
	}
	if !served.Has(r.k) {
		return nil, transport.ErrGone
	}
	data, err := served.ChunkRange(r.k, from, to)
	if err != nil {
		return nil, notHere(err)
	}
	return data, nil
}

// weighChunk returns how many bytes are made to answer a request for a chunk or a range of one.
func (s *Server) weighChunk(request transport.Request) int64 {
	r, err := decodeChunkRequest(request.Body)
	if err != nil {
		return 0
	}
	served, err := s.find(r.height)
	if err != nil {
		return 0
	}
	defer served.Release()
	if !served.Has(r.k) {
		return 0
	}
	return int64(served.RangeCost(r.k, uint64(r.offset), uint64(r.offset)+uint64(r.length)))
}

func (s *Server) subManifest(body []byte) ([]byte, error) {
	r, err := decodeSubManifestRequest(body)
	if err != nil {
		return nil, errors.Join(transport.ErrRefused, err)
	}
	served, err := s.find(r.height)
	if err != nil {
		return nil, err
	}
	defer served.Release()
	if c := served.Commitment(); r.k >= c.Chunks || uint64(r.limit) >= c.ChunkBytes || uint64(r.limit) < avlstar.MinCutBytes {
		return nil, transport.ErrRefused
	}
	if !served.Has(r.k) {
		return nil, transport.ErrGone
	}
	sub, err := served.SubManifest(r.k, uint64(r.limit))
	if err != nil {
		return nil, notHere(err)
	}
	return sub, nil
}

// notHere answers ErrGone for a snapshot that is damaged on disk: it no longer serves.
func notHere(err error) error {
	if errors.Is(err, statesync.ErrDamagedPin) {
		return errors.Join(transport.ErrGone, err)
	}
	return err
}

func (s *Server) peers([]byte) ([]byte, error) {
	if s.o.Peers == nil {
		return encodePeers(nil), nil
	}
	return encodePeers(s.o.Peers()), nil
}

func (s *Server) parts([]byte) ([]byte, error) {
	if !s.o.Parts {
		return nil, transport.ErrRefused
	}
	return encodeParts(s.o.Snapshots.Parts()), nil
}

func (s *Server) genesis([]byte) ([]byte, error) {
	if len(s.o.Genesis) == 0 {
		return nil, transport.ErrGone
	}
	return s.o.Genesis, nil
}
