package serve

import (
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/transport"
)

// Versions are the states that a node answers from. Its method is called concurrently.
type Versions interface {
	// Version returns the state after block height, above 0, with a reference that the caller
	// releases. ok is false if that height is not kept. It returns at once.
	Version(height int64) (v *avlstar.Version, ok bool)
}

// Options are what a Handler answers from, and with.
type Options struct {
	Versions Versions
	// MaxBagBytes limits a witness; default DefaultBagBytes. A requester then asks for less at
	// once.
	MaxBagBytes int
	// Making is shared by all servers of a node whose answers take long to make: see Places.
	Making chan struct{}
}

// Handler answers methods 13 and 14 from states that may lack parts.
type Handler struct{ o Options }

// New returns a Handler.
func New(o Options) *Handler {
	if o.MaxBagBytes == 0 {
		o.MaxBagBytes = DefaultBagBytes
	}
	o.Making = Places(o.Making)
	return &Handler{o}
}

// Register makes h the handler of its methods.
func (h *Handler) Register(mux *transport.Mux) {
	Costly(mux, h.o.Making, dsm.MethodWitness, h.witness, func(r transport.Request) int64 { return WeighWitness(r, h.o.MaxBagBytes) })
	Costly(mux, h.o.Making, dsm.MethodUpper, h.upper, WeighUpper)
}

func (h *Handler) witness(body []byte) ([]byte, error) {
	w, err := DecodeWitness(body)
	if err != nil {
		return nil, err
	}
	v, ok := h.o.Versions.Version(w.Height)
	if !ok {
		return nil, transport.ErrGone
	}
	defer v.Release()
	return Bag(v, avlstar.KeyRange{}, w, h.o.MaxBagBytes, true)
}

func (h *Handler) upper(body []byte) ([]byte, error) {
	u, err := DecodeUpper(body)
	if err != nil {
		return nil, err
	}
	v, ok := h.o.Versions.Version(u.Height)
	if !ok {
		return nil, transport.ErrGone
	}
	defer v.Release()
	return Upper(v, int(u.Depth))
}
