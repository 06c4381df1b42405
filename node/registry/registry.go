// Package registry removes a node's metrics when the node stops, so that the next node of the
// process can register its own.
//
//	node ── Register ──► Registry ──► prometheus.Registerer
//	     ── Close ─────────┴─ Unregister of each
package registry

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Registry registers metrics with another registerer, and remembers them. Its methods may be called
// concurrently.
type Registry struct {
	to prometheus.Registerer
	mu struct {
		sync.Mutex
		all []prometheus.Collector // those that may still be registered
	}
}

var _ prometheus.Registerer = (*Registry)(nil)

// New returns a Registry that registers metrics with to.
func New(to prometheus.Registerer) *Registry { return &Registry{to: to} }

// Register implements prometheus.Registerer.
func (r *Registry) Register(c prometheus.Collector) error {
	if err := r.to.Register(c); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.all = append(r.mu.all, c)
	return nil
}

// MustRegister implements prometheus.Registerer: it panics where Register returns an error.
func (r *Registry) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// Unregister implements prometheus.Registerer.
func (r *Registry) Unregister(c prometheus.Collector) bool { return r.to.Unregister(c) }

// Close unregisters all metrics. A nil Registry has none.
func (r *Registry) Close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.mu.all {
		r.to.Unregister(c)
	}
	r.mu.all = nil
}
