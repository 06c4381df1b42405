//go:build !purego

package avlstar

// prefetchNode asks for an inner node, without waiting for it.
//
//go:noescape
func prefetchNode(l *link, i *image)

// prefetchRecord asks for the beginning of a leaf's record.
//
//go:noescape
func prefetchRecord(b *byte)

// prefetchNewNode asks for an inner node that will be written.
//
//go:noescape
func prefetchNewNode(l *link, i *image)

// prefetchNewRecord asks for the beginning of a leaf's record that will be written.
//
//go:noescape
func prefetchNewRecord(b *byte)
