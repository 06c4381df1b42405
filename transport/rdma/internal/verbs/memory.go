//go:build cgo && linux && rdma

package verbs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

const (
	hugePage      = 2 << 20
	mapHugePages  = 0x40000 | 21<<26 // MAP_HUGETLB | MAP_HUGE_2MB; the default size may be 1 GiB
	bindPreferred = 1                // MPOL_PREFERRED
	maxNodes      = 1024
)

// mapped returns memory outside of the Go heap, since devices write to it: in huge pages if enough
// are reserved, and on the NUMA node if that is known.
func mapped(size, node int) ([]byte, error) {
	const protection = syscall.PROT_READ | syscall.PROT_WRITE
	var memory []byte
	err := error(syscall.ENOMEM)
	if size%hugePage == 0 {
		memory, err = syscall.Mmap(-1, 0, size, protection, syscall.MAP_PRIVATE|syscall.MAP_ANON|mapHugePages)
	}
	if err != nil {
		if memory, err = syscall.Mmap(-1, 0, size, protection, syscall.MAP_PRIVATE|syscall.MAP_ANON); err != nil {
			return nil, err
		}
	}
	if node >= 0 && node < maxNodes {
		var nodes [maxNodes / 64]uint64
		nodes[node/64] = 1 << (node % 64)
		// Best effort: on another node the memory is only slower.
		_, _, _ = syscall.Syscall6(syscall.SYS_MBIND, uintptr(unsafe.Pointer(&memory[0])), uintptr(size), bindPreferred,
			uintptr(unsafe.Pointer(&nodes[0])), maxNodes, 0)
	}
	return memory, nil
}

func unmapped(memory []byte) error {
	if memory == nil {
		return nil
	}
	return syscall.Munmap(memory)
}

// nodeOf returns the NUMA node of a device; -1 if it is unknown.
func nodeOf(device string) int {
	text, err := os.ReadFile(filepath.Join("/sys/class/infiniband", device, "device/numa_node"))
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return -1
	}
	return node
}
