//go:build !amd64 || purego

package avlstar

func prefetchNode(*link, *image) {}

func prefetchLink(*link) {}

func prefetchRecord(*byte) {}

func prefetchNewNode(*link, *image) {}

func prefetchNewRecord(*byte) {}
