package avlstar

import (
	"syscall"
	"unsafe"
)

// heapGrowth is what Go's heap grows by at least, and is aligned to.
const heapGrowth = 4 << 20

const madvHugepage = 14

// adviseHuge asks the kernel to back memory that was just allocated, and is not yet touched, by huge pages. A walk through a large
// tree goes to another page at every step: with pages of 4 KiB most of those miss the TLB too. It advises the whole of what
// the heap grew by, since a huge page needs 2 MiB with one advice. Where it fails, or the memory was in use before, nothing is
// lost.
func adviseHuge[T any](s []T) {
	at, n := uintptr(unsafe.Pointer(unsafe.SliceData(s))), uintptr(len(s))*unsafe.Sizeof(s[0]) //nolint:gosec // only the address is used
	from := at &^ (heapGrowth - 1)
	to := (at + n + heapGrowth - 1) &^ (heapGrowth - 1)
	_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, from, to-from, madvHugepage)
}
