//go:build !purego

package avlstar

// prefetchNode fetches an inner node into the cache, without waiting for it.
//
//go:noescape
func prefetchNode(l *link, i *image)

// prefetchLink fetches only the link of an inner node into the cache.
//
//go:noescape
func prefetchLink(l *link)

// prefetchRecord fetches the beginning of a leaf's record.
//
//go:noescape
func prefetchRecord(b *byte)

// prefetchNewNode fetches an inner node that will be written.
//
//go:noescape
func prefetchNewNode(l *link, i *image)

// prefetchNewRecord fetches the beginning of a leaf's record that will be written.
//
//go:noescape
func prefetchNewRecord(b *byte)
