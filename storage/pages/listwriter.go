package pages

import (
	"iter"
	"sync/atomic"

	"github.com/starling-kv/starling/avlstar"
)

// Listed is a version with a page list: *avlstar.Version or *avlstar.Partial.
type Listed[V any] interface {
	comparable
	HasPageList() bool
	PageList(base V) iter.Seq[avlstar.PageStub]
	Retain()
	Release()
}

// maxListBytes is the approximate size of the largest page list that is written: of 200 million
// keys with usual lengths. The whole list is in memory until it is written.
const maxListBytes = 512 << 20

// ListWriter determines which part of the page list each block writes: what changed since the block
// before, or the whole list if that of the block before is not on disk. Begin, Known and Next are
// called by one goroutine at a time.
type ListWriter[V Listed[V]] struct {
	known    bool // the list of the last version is on disk, or waits to be written
	tooLarge atomic.Bool
	max      int // default: maxListBytes
}

// Begin says that another state follows, or that a block was not written. known: the page list of
// the last version is on disk.
func (w *ListWriter[V]) Begin(known bool) { w.known = known }

// Known reports whether the page list of the last version is on disk, or waits to be written.
func (w *ListWriter[V]) Known() bool { return w.known }

// Next returns the part of the page list that the block with version v writes. base is the version
// before, nil if there is none; both must be referenced. leaves is the number of leaves of v.
func (w *ListWriter[V]) Next(height int64, leaves uint64, v, base V) ListPart[V] {
	var none V
	was := w.known
	w.known = v.HasPageList() && !w.tooLarge.Load()
	if !w.known {
		return ListPart[V]{}
	}
	if !was || base == none || !base.HasPageList() {
		return ListPart[V]{w: w, height: height, leaves: leaves, v: v}
	}
	base.Retain()
	return ListPart[V]{w: w, height: height, leaves: leaves, v: v, base: base}
}

// ListPart is the part of the page list that a block writes; the zero value writes nothing. It
// holds a reference to the version before until Release.
type ListPart[V Listed[V]] struct {
	w       *ListWriter[V] // nil: nothing is written
	height  int64
	leaves  uint64
	v, base V // base is nil if the whole list is written
}

// Whole reports whether the part is the whole list (storage.Block.NewPageList).
func (p *ListPart[V]) Whole() bool {
	var none V
	return p.w != nil && p.base == none
}

// Take calls add for each record of the part (storage.Owner.Take). The version must be referenced.
func (p *ListPart[V]) Take(add func(key, record []byte)) {
	if p.w == nil {
		return
	}
	if p.Whole() && !p.fits() {
		p.w.tooLarge.Store(true) // a start reads the leaves
		return
	}
	AddPageList(add, p.height, p.leaves, p.v.PageList(p.base))
}

func (p *ListPart[V]) fits() bool {
	size, limit := 0, p.w.max
	if limit == 0 {
		limit = maxListBytes
	}
	for page := range p.v.PageList(p.base) {
		if size += len(page.First) + pageRecordBytes; size > limit {
			return false
		}
	}
	return true
}

// Release releases the version before. Further calls have no effect.
func (p *ListPart[V]) Release() {
	var none V
	if p.base != none {
		p.base.Release()
	}
	*p = ListPart[V]{}
}
