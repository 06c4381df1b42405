package witness

import (
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/transport"
)

// Versions provides the states that a node serves. It must be safe for concurrent use.
type Versions interface {
	// Version returns the state after block height, above 0, with a reference that the caller
	// releases. ok is false if that height is not kept. It does not block.
	Version(height int64) (v *avlstar.Version, ok bool)
}

// Options configure a Handler.
type Options struct {
	Versions Versions
	// MaxMultiproofBytes limits a witness; default DefaultMultiproofBytes. If a witness would be
	// longer, the requester asks for less at once.
	MaxMultiproofBytes int
	// Making is shared by all servers of a node with expensive answers: see Places.
	Making chan struct{}
}

// Handler answers methods 13 and 14 from states that may be incomplete.
type Handler struct{ o Options }

// New returns a Handler.
func New(o Options) *Handler {
	if o.MaxMultiproofBytes == 0 {
		o.MaxMultiproofBytes = DefaultMultiproofBytes
	}
	o.Making = Places(o.Making)
	return &Handler{o}
}

// Register registers the handler's methods.
func (h *Handler) Register(mux *transport.Mux) {
	Costly(mux, h.o.Making, dsm.MethodWitness, h.witness, func(r transport.Request) int64 { return WeighWitness(r, h.o.MaxMultiproofBytes) })
	Rare(mux)(dsm.MethodUpper, h.upper, WeighUpper)
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
	return Multiproof(v, w, h.o.MaxMultiproofBytes, true)
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
