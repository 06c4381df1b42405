//go:build !linux

package avlstar

func adviseHuge[T any]([]T) {}
