package syncbench

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"net"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/serve"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// Target is what a joiner starts from: peers, and the state to join. It is trusted like a verified
// header.
type Target struct {
	ChainID string       `json:"chain_id"`
	Peers   []string     `json:"peers"` // transport.Address, as text
	Height  int64        `json:"height"`
	AppHash avlstar.Hash `json:"app_hash"`
	Keys    uint64       `json:"keys"` // keys in the state, for a check of the join
}

// JoinStats are a joiner's figures of its join.
type JoinStats struct {
	Bytes    int64 `json:"bytes"`    // bytes received in responses, including wasted ones
	Wasted   int64 `json:"wasted"`   // part of Bytes that was wasted
	Manifest int64 `json:"manifest"` // part of Bytes for the manifest

	Chunks    int   `json:"chunks"`
	Refetched int   `json:"refetched"`  // chunks re-requested
	Banned    int   `json:"banned"`     // banned peers
	Keys      int64 `json:"keys"`       // keys in the joined state
	TreeBytes int64 `json:"tree_bytes"` // memory of the joined tree

	// Seconds from the start to the end of each phase; they overlap.
	ManifestS float64 `json:"manifest_s"` // until the manifest was verified
	FetchedS  float64 `json:"fetched_s"`  // until the last chunk was verified
	DurableS  float64 `json:"durable_s"`  // until everything was durable
	SettledS  float64 `json:"settled_s"`  // until background ingestion into tables ended
}

// servedHeight is a multiple of the default snapshot interval.
const servedHeight = 1000

const chainID = "starling-bench"

// server serves snapshots on one or more addresses, each with its own key, until it is closed.
type server struct {
	snapshots *statesync.Manager
	listeners []*tcp.Server
	mux       *transport.Mux
	target    Target
}

// newServer returns a server of the snapshots of a Manager. It serves once listen is called.
func newServer(snapshots *statesync.Manager) *server {
	s := &server{snapshots: snapshots, mux: new(transport.Mux), target: Target{ChainID: chainID}}
	serve.New(serve.Options{Snapshots: snapshots}).Register(s.mux)
	return s
}

// serveOnly returns a server whose only snapshot is v, which it retains.
func serveOnly(v *avlstar.Version) *server {
	s := newServer(statesync.NewManager(statesync.Options{Interval: servedHeight, Keep: 1}))
	s.snapshots.Committed(servedHeight, v)
	s.target.Height, s.target.AppHash, s.target.Keys = servedHeight, v.AppHash(), v.Len()
	return s
}

// listen adds a peer at 127.0.0.1. wrap, if not nil, wraps the honest handler.
func (s *server) listen(o tcp.Options, wrap func(transport.Handler) transport.Handler) error {
	return s.listenOn("127.0.0.1", o, wrap)
}

// listenOn is listen on another loopback address.
func (s *server) listenOn(host string, o tcp.Options, wrap func(transport.Handler) transport.Handler) error {
	var err error
	if _, o.Key, err = ed25519.GenerateKey(rand.Reader); err != nil {
		return err
	}
	o.ChainID, o.Handler = s.target.ChainID, s.mux
	if wrap != nil {
		o.Handler = wrap(s.mux)
	}
	l, err := tcp.Listen(net.JoinHostPort(host, "0"), o)
	if err != nil {
		return err
	}
	s.listeners = append(s.listeners, l)
	s.target.Peers = append(s.target.Peers, transport.Address{ID: tcp.IDOf(o.Key.Public().(ed25519.PublicKey)), HostPort: l.Addr().String()}.String())
	return nil
}

// silence closes all peers.
func (s *server) silence() (err error) {
	for _, l := range s.listeners {
		err = errors.Join(err, l.Close())
	}
	s.listeners, s.target.Peers = nil, nil
	return err
}

func (s *server) close() error { return errors.Join(s.silence(), s.snapshots.Close()) }

// newDialer returns a dialer with a new node key.
func newDialer(t Target) (transport.Dialer, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return tcp.NewDialer(tcp.Options{Key: key, ChainID: t.ChainID}), nil
}

// addresses parses the addresses of the peers.
func (t Target) addresses() (list []transport.Address, err error) {
	for _, text := range t.Peers {
		a, err := transport.ParseAddress(text)
		if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	return list, nil
}
