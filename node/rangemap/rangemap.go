// Package rangemap keeps the map of a sharded state's ranges up to date while a node runs: which
// storage nodes keep which keys. The operator signs each version. A node takes a newer version from
// its file, which the operator can replace, and from other nodes; it accepts only versions that the
// operator of its own map has signed.
//
//	operator ── push ──► some nodes ◄── every few seconds, by each node: "is there a newer one?" ── others
package rangemap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/durable"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/transport"
)

const (
	// askEvery is the interval of requests for a newer map, and of looking at the file.
	askEvery = 2 * time.Second
	// askTimeout limits a request to one node.
	askTimeout = 5 * time.Second
	// pauseAfter is the time for which nodes cannot offer a map after one of them has offered an
	// invalid one: verifying a signature takes milliseconds.
	pauseAfter = time.Second
)

// Options configure Maps.
type Options struct {
	Logger  log.Logger
	Home    string
	File    string // as config.LoadStorageNodes takes it
	ChainID string
	Self    transport.ID
	Dialer  transport.Dialer
	// Peers returns further connected nodes to ask, such as validators; nil: none.
	Peers func() []transport.Conn
	// Use applies a newer map. After an error the map is not taken. It is not called concurrently.
	Use func(*config.StorageNodes) error
}

// Maps holds the current map. Its methods may be called concurrently.
type Maps struct {
	o       Options
	path    string
	current atomic.Pointer[config.StorageNodes]

	taking sync.Mutex // held while a map is verified and taken
	paused time.Time  // no offers before this time; guarded by taking
	// The file when it was last read; used by Run only.
	modified time.Time
	size     int64
}

// New returns Maps with a map that was read from the file. Error: config.ErrInvalid if it is of
// another chain.
func New(o Options, nodes *config.StorageNodes) (*Maps, error) {
	if nodes.Version > 0 && nodes.ChainID != o.ChainID {
		return nil, config.Invalid(fmt.Errorf("%s is of chain %q, this node is of chain %q", o.File, nodes.ChainID, o.ChainID))
	}
	m := &Maps{o: o, path: config.StorageNodesPath(o.Home, o.File)}
	m.current.Store(nodes)
	m.isUnchanged() // remembers the file
	return m, nil
}

// Current returns the current map.
func (m *Maps) Current() *config.StorageNodes { return m.current.Load() }

// Register registers the handler of dsm.MethodMap.
func (m *Maps) Register(mux *transport.Mux) {
	mux.Handle(dsm.MethodMap, transport.HandlerFunc(func(_ context.Context, r transport.Request) ([]byte, error) { return m.serve(r) }))
}

// serve answers a request, and takes the map that comes with it if it is newer.
func (m *Maps) serve(r transport.Request) ([]byte, error) {
	asked, err := dsm.DecodeMap(r.Body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", transport.ErrRefused, err)
	}
	if asked.Version > m.Current().Version && len(asked.Text) > 0 {
		if !m.taking.TryLock() {
			return nil, transport.ErrBusy
		}
		defer m.taking.Unlock()
		if time.Now().Before(m.paused) {
			return nil, transport.ErrBusy
		}
		if err := m.take(asked.Text, string(r.Peer)); err != nil {
			m.paused = time.Now().Add(pauseAfter)
			return nil, fmt.Errorf("%w: %w", transport.ErrRefused, err)
		}
	}
	answer := dsm.Map{Version: m.Current().Version}
	if asked.Version < answer.Version {
		answer.Text = m.Current().Text
	}
	return answer.Encode(), nil
}

// Offer takes a map if it is newer and valid. Errors: those of (*config.StorageNodes).Replace, of
// Options.Use and of writing the file.
func (m *Maps) Offer(text []byte, from string) error {
	m.taking.Lock()
	defer m.taking.Unlock()
	return m.take(text, from)
}

// take is Offer for a caller that holds taking.
func (m *Maps) take(text []byte, from string) error {
	newer, err := m.Current().Replace(text)
	if err != nil {
		return err
	}
	if err := m.use(newer, from); err != nil {
		return err
	}
	return durable.Write(m.path, text, 0o600)
}

// use applies a valid map. The caller holds taking.
func (m *Maps) use(newer *config.StorageNodes, from string) error {
	if err := m.o.Use(newer); err != nil {
		return fmt.Errorf("map of the ranges, version %d: %w", newer.Version, err)
	}
	m.current.Store(newer)
	m.o.Logger.Info("Took a newer map of the ranges", "map_version", newer.Version, "from", from)
	return nil
}

// Run looks at the file, and asks other nodes for a newer map, until ctx ends.
func (m *Maps) Run(ctx context.Context) {
	warned := ""
	for turn := 0; sleep.For(ctx, askEvery) == nil; turn++ {
		err := m.reread()
		if err == nil && m.Current().Version > 0 {
			err = m.ask(ctx, turn)
		}
		if err != nil && ctx.Err() == nil && err.Error() != warned {
			warned = err.Error()
			m.o.Logger.Error("Cannot take a map of the ranges", "err", err)
		}
	}
}

// isUnchanged reports whether the file is the one that was seen last, and remembers it.
func (m *Maps) isUnchanged() bool {
	info, err := os.Stat(m.path)
	if err != nil {
		return true // an operator may be replacing it
	}
	same := info.ModTime().Equal(m.modified) && info.Size() == m.size
	m.modified, m.size = info.ModTime(), info.Size()
	return same
}

// reread takes the file if it has changed and is newer. The file is trusted: it can have another
// operator.
func (m *Maps) reread() error {
	if m.isUnchanged() {
		return nil
	}
	nodes, err := config.LoadStorageNodes(m.o.Home, m.o.File)
	if err != nil {
		return err
	}
	m.taking.Lock()
	defer m.taking.Unlock()
	old := m.Current()
	switch {
	case slices.Equal(nodes.Text, old.Text):
		return nil
	case nodes.Version == 0:
		return fmt.Errorf("%s has changed, but is not signed: it counts from the next start of this node; sign it with `starlingd storage ranges sign` to change it while nodes run", m.path)
	case nodes.Version <= old.Version:
		return fmt.Errorf("%s has version %d, but this node has version %d: sign it again with `starlingd storage ranges sign`", m.path, nodes.Version, old.Version)
	case nodes.ChainID != m.o.ChainID:
		return fmt.Errorf("%s is of chain %q, this node is of chain %q", m.path, nodes.ChainID, m.o.ChainID)
	}
	return m.use(nodes, m.path)
}

// ask asks one storage node and one other peer; turn says which. Nodes that cannot be reached, or
// that do not know the method, are no error.
func (m *Maps) ask(ctx context.Context, turn int) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	nodes := m.Current()
	var names []dsm.NodeID
	for name := range nodes.Addresses {
		if transport.ID(name) != m.o.Self {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var errs []error
	if len(names) > 0 {
		if conn, err := m.o.Dialer.Dial(ctx, nodes.Addresses[names[turn%len(names)]]); err == nil {
			errs = append(errs, m.askOne(ctx, conn), conn.Close())
		}
	}
	if m.o.Peers != nil {
		if conns := m.o.Peers(); len(conns) > 0 {
			errs = append(errs, m.askOne(ctx, conns[turn%len(conns)]))
		}
	}
	return errors.Join(errs...)
}

func (m *Maps) askOne(ctx context.Context, conn transport.Conn) error {
	answer, err := Ask(ctx, conn, dsm.Map{Version: m.Current().Version})
	if err != nil || len(answer.Text) == 0 {
		return nil //nolint:nilerr // another node is asked next
	}
	err = m.Offer(answer.Text, conn.Remote().String())
	if errors.Is(err, config.ErrNotNewer) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", conn.Remote(), err)
	}
	return nil
}

// Claims asks a storage node for the ranges that it has.
func Claims(ctx context.Context, conn transport.Conn) ([]dsm.Claim, error) {
	b, err := conn.Call(ctx, transport.Call{Method: dsm.MethodRanges, Max: dsm.MaxClaimsBytes})
	if err != nil {
		return nil, err
	}
	return dsm.DecodeClaims(b)
}

// Loads asks a storage node for the sizes and the traffic of its ranges.
func Loads(ctx context.Context, conn transport.Conn) ([]dsm.Load, error) {
	b, err := conn.Call(ctx, transport.Call{Method: dsm.MethodLoads, Max: dsm.MaxLoadsBytes})
	if err != nil {
		return nil, err
	}
	return dsm.DecodeLoads(b)
}

// Ask sends a request for a newer map to a node, with an offer if it has a text.
func Ask(ctx context.Context, conn transport.Conn, m dsm.Map) (dsm.Map, error) {
	b, err := conn.Call(ctx, transport.Call{Method: dsm.MethodMap, Body: m.Encode(), Max: dsm.MaxMapAnswerBytes})
	if err != nil {
		return dsm.Map{}, err
	}
	return dsm.DecodeMap(b)
}
