//go:build linux || darwin

package sha256mb

import (
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// guardedPages returns n pages, each between two that must not be touched.
func guardedPages(t *testing.T, n int) (pages [][]byte) {
	t.Helper()
	size := syscall.Getpagesize()
	memory, err := syscall.Mmap(-1, 0, (2*n+1)*size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(memory)) })
	for i := range 2*n + 1 {
		page := memory[i*size : (i+1)*size : (i+1)*size]
		if i%2 == 1 {
			pages = append(pages, page)
		} else {
			require.NoError(t, syscall.Mprotect(page, syscall.PROT_NONE))
		}
	}
	return pages
}

// Nothing is read before a message, behind its padded length, or behind its capacity: there may be
// no memory there.
func TestReadsNothingElse(t *testing.T) {
	pages := guardedPages(t, 40)
	r := rand.NewChaCha8([32]byte{5})
	for _, page := range pages {
		_, _ = r.Read(page)
	}
	cuts := map[string]func(page []byte, length int) []byte{
		"the padded length ends the page": func(p []byte, n int) []byte { return p[len(p)-padded(n):][:n] },
		"the message ends the page":       func(p []byte, n int) []byte { return p[len(p)-n:] },
		"the capacity is a byte short":    func(p []byte, n int) []byte { return p[len(p)-padded(n)+1:][:n] },
		"the message begins the page":     func(p []byte, n int) []byte { return p[:n] },
	}
	for name, cut := range cuts {
		t.Run(name, func(t *testing.T) {
			for length := range 301 {
				var msgs [][]byte
				for _, page := range pages {
					msgs = append(msgs, cut(page, length))
				}
				check(t, nil, msgs, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 40)
			}
		})
	}
}
