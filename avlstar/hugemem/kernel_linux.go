package hugemem

import "syscall"

const (
	madvHugepage      = 14
	madvNoHugepage    = 15
	madvPopulateWrite = 23 // Linux 5.14
)

var kernel = system{
	reserve: func(n int) ([]byte, error) {
		b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
		if err == nil {
			_ = syscall.Madvise(b, madvHugepage) // a kernel without huge pages uses small ones
		}
		return b, err
	},
	remove: syscall.Munmap,
	touch: func(b []byte) {
		if syscall.Madvise(b, madvPopulateWrite) == nil {
			return
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 0
		}
	},
	drop: func(b []byte) error { return syscall.Madvise(b, syscall.MADV_DONTNEED) },
	advise: func(b []byte, huge bool) {
		advice := madvNoHugepage
		if huge {
			advice = madvHugepage
		}
		_ = syscall.Madvise(b, advice) // a kernel without huge pages uses small ones
	},
}
