//go:build !linux

package avlstar

import "unsafe"

func adviseHuge(unsafe.Pointer, uintptr) {}
