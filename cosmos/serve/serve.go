// Package serve serves the states in an application's database to joiners of a chain on
// cosmos/iavl.
//
//	nodedb.State ──Add──▶ Server ◀── offers, manifest, leaves ── transport.Mux ◀── joiners
//
// It keeps no copy of a state: each request reads, verifies and compresses its chunk. It does
// not limit joiners; the transport limits connections and their rate.
package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/packed"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// Server serves some states. Its methods may be called concurrently.
type Server struct {
	// Failed, if not nil, is called with the error of a request that failed with ErrFailed, such as
	// that of a damaged database. Set it before using the server.
	Failed func(err error)

	packer *packed.Packer
	mu     sync.RWMutex
	states map[int64]*served // guarded by mu
}

// served is a state with the manifest that joiners request. The finer ones are for joins in-band:
// to cut one takes seconds, so a request for it is refused.
type served struct {
	state    *nodedb.State
	manifest []byte
}

const format = iavlsync.Format8192

// New returns a Server without states.
func New() *Server { return &Server{packer: packed.NewPacker(), states: map[int64]*served{}} }

// Add cuts a state into chunks, and offers it from then on.
func (s *Server) Add(state *nodedb.State) error {
	m, err := state.Manifest(format)
	if err != nil {
		return fmt.Errorf("serve height %d: %w", state.Height(), err)
	}
	v := &served{state, m.Encode()}
	if n := len(v.manifest); n > iavlsync.MaxManifestBytes { // long keys; no joiner would accept it
		return fmt.Errorf("serve height %d: %w: its manifest has %d bytes", state.Height(), nodedb.ErrTooLarge, n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.states) == iavlsync.MaxOffers {
		return fmt.Errorf("serve height %d: already serving %d states", state.Height(), iavlsync.MaxOffers)
	}
	s.states[state.Height()] = v
	return nil
}

// Remove stops offering a height. Requests in progress may still read its state.
func (s *Server) Remove(height int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.states, height)
}

// Offers returns the heights that are served.
func (s *Server) Offers() iavlsync.Offers {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.states))
}

// Register registers the handlers of the methods.
func (s *Server) Register(m *transport.Mux) {
	m.Handle(iavlsync.MethodOffers, transport.HandlerFunc(s.offers))
	m.Handle(iavlsync.MethodManifest, transport.Weighed(transport.HandlerFunc(s.manifest),
		func(transport.Request) int64 { return iavlsync.ManifestPartBytes }))
	m.Handle(iavlsync.MethodLeaves, transport.Weighed(transport.HandlerFunc(s.leaves), weigh))
}

// Lanes are those of a tcp.Server with these handlers, so that neither offers and manifests, which
// are in memory, nor other methods wait for leaves, which may be read from a disk.
func Lanes() []tcp.Lane {
	return []tcp.Lane{
		{Methods: []transport.Method{iavlsync.MethodOffers, iavlsync.MethodManifest}, Workers: 1},
		{Methods: []transport.Method{iavlsync.MethodLeaves}, Workers: 8},
	}
}

func (s *Server) offers(context.Context, transport.Request) ([]byte, error) {
	return s.Offers().Encode(), nil
}

func (s *Server) at(height int64) (*served, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	v := s.states[height]
	if v == nil {
		return nil, transport.ErrGone
	}
	return v, nil
}

func (s *Server) manifest(_ context.Context, r transport.Request) ([]byte, error) {
	q, err := iavlsync.DecodeManifestRequest(r.Body)
	if err != nil || q.Format != format {
		return nil, transport.ErrRefused
	}
	v, err := s.at(q.Height)
	if err != nil {
		return nil, err
	}
	n := int64(len(v.manifest))
	from := min(q.Offset, n)
	return v.manifest[from:min(from+iavlsync.ManifestPartBytes, n)], nil
}

// leafBytes is the assumed length of a leaf before it is read.
const leafBytes = 1 << 10

// weigh returns the estimated length of a response.
func weigh(r transport.Request) int64 {
	q, err := iavlsync.DecodeRequest(r.Body)
	if err != nil {
		return 0
	}
	return min(q.Leaves*leafBytes, iavlsync.MaxAnswerBytes)
}

func (s *Server) leaves(_ context.Context, r transport.Request) ([]byte, error) {
	q, err := iavlsync.DecodeRequest(r.Body)
	if err != nil {
		return nil, transport.ErrRefused
	}
	v, err := s.at(q.Height)
	if err != nil {
		return nil, err
	}
	b, err := v.state.Answer(&q)
	switch {
	case errors.Is(err, iavlsync.ErrNoSubtree):
		return nil, transport.ErrRefused
	case err != nil:
		return nil, s.failed(err)
	case q.Packed:
		b = s.packer.Pack(b)
	}
	return b, nil
}

func (s *Server) failed(err error) error {
	if s.Failed != nil {
		s.Failed(err)
	}
	return err
}
