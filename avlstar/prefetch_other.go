//go:build !amd64 || purego

package avlstar

func prefetchNode(*link, *image) {}

func prefetchRecord(*byte) {}

func prefetchNewNode(*link, *image) {}

func prefetchNewRecord(*byte) {}
