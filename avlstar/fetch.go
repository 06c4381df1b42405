package avlstar

// fetchGroup is the number of paths that are prefetched at a time. Each path is a chain of cache
// misses, but the misses of different paths overlap: a core handles twenty or more at once. If the
// group were much larger, the walk's next paths would be evicted from the cache before it needs
// them.
const fetchGroup = 128

// fetch brings the paths of the next changes into the cache, so that the walk, which follows them
// one after another, finds them there.
func (e *edit) fetch() {
	ops := e.ops[e.warm:min(e.warm+fetchGroup, len(e.ops))]
	e.warm += len(ops)
	if e.start == 0 || len(ops) < 4 {
		return
	}
	w := &e.view
	var at [fetchGroup]ref
	for i := range ops {
		at[i] = e.start
	}
	for going := true; going; {
		going = false
		for i := range ops {
			n := at[i]
			if !n.isInner() {
				continue
			}
			l := w.link(n)
			side := right
			if ops[i].prefix < l.prefix { // a guess if the prefixes are equal
				side = left
			}
			n = l.child[side]
			at[i] = n
			switch {
			case n.isInner():
				going = true
				prefetchNode(w.link(n), w.image(n))
			case n.isLeaf():
				prefetchRecord(&w.record(n)[0])
			}
		}
	}
}
