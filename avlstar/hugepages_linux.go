package avlstar

import (
	"syscall"
	"unsafe"
)

// heapGrowth is the least amount by which Go's heap grows, and its alignment.
const heapGrowth = 4 << 20

const madvHugepage = 14

// adviseHuge asks the kernel to use huge pages for memory that was just allocated and not yet
// touched. A walk through a large tree visits another page at every step; with pages of 4 KiB, most
// steps miss the TLB too. The advice covers the whole area by which the heap grew, because the
// kernel uses a huge page only for 2 MiB with the same advice. It is harmless if the call fails, or
// if the memory was in use before.
func adviseHuge[T any](s []T) {
	at, n := uintptr(unsafe.Pointer(unsafe.SliceData(s))), uintptr(len(s))*unsafe.Sizeof(s[0]) //nolint:gosec // only the address is used
	from := at &^ (heapGrowth - 1)
	to := (at + n + heapGrowth - 1) &^ (heapGrowth - 1)
	_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, from, to-from, madvHugepage)
}
