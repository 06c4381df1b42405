package hugemem

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// mapped returns the sums of proc(5) smaps about a mapping; none if nothing is mapped there.
func mapped(t *testing.T, whole []byte) map[string]int {
	f, err := os.Open("/proc/self/smaps")
	require.NoError(t, err)
	defer f.Close()
	begin, inside, found := uintptr(unsafe.Pointer(&whole[0])), false, map[string]int{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var from, to uintptr
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x ", &from, &to); n == 2 {
			inside = begin <= from && to <= begin+uintptr(len(whole))
			continue
		}
		name, rest, _ := strings.Cut(lines.Text(), ":")
		var kib int
		if n, _ := fmt.Sscanf(rest, "%d kB", &kib); inside && n == 1 {
			found[name] += kib
		}
	}
	return found
}

// The kernel's memory comes when a frame is touched, and goes with it.
func TestKernelMemoryReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pool{system: kernel}
		a, b := takeAndWait(p), takeAndWait(p)
		at := a.mapping.whole
		before := mapped(t, at)
		require.GreaterOrEqual(t, before["Size"], framesPerMapping*FrameBytes>>10)
		for _, f := range []*Frame{a, b} {
			for i := range f.Bytes() {
				f.Bytes()[i] = 1
			}
		}
		full := mapped(t, at)
		require.GreaterOrEqual(t, full["Rss"], 2*FrameBytes>>10)
		require.LessOrEqual(t, full["Rss"], 3*FrameBytes>>10, "two that are lent, one that is ready")
		t.Logf("%d of %d KiB in huge pages", full["AnonHugePages"], full["Rss"])
		b.Drop(0, FrameBytes/2)
		require.Equal(t, 5*FrameBytes/2>>10, mapped(t, at)["Rss"], "with the one that is ready")
		require.Equal(t, byte(1), b.Bytes()[FrameBytes-1])
		require.Zero(t, b.Bytes()[FrameBytes/2-1], "it can be used again")
		p.give(b)
		require.Equal(t, 2*FrameBytes>>10, mapped(t, at)["Rss"])
		p.give(a)
		synctest.Wait()
		require.Empty(t, mapped(t, at))
	})
}
