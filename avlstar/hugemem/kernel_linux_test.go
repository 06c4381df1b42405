package hugemem

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// mapped returns the sums of proc(5) smaps for a mapping. They are empty if nothing is mapped
// there.
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

// The kernel allocates memory when a frame is touched, and frees it with the frame.
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

// The memory of frames that are given back together returns too: that of whole mappings and of
// parts of them.
func TestKernelMemoryOfManyReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pool{system: kernel}
		var all []*Frame
		for range framesPerMapping + 8 {
			f := takeAndWait(p)
			f.Bytes()[0] = 1
			all = append(all, f)
		}
		all[2].Drop(0, FrameBytes/2)
		stays := all[5]
		first, second := stays.mapping.whole, all[framesPerMapping].mapping.whole
		p.giveAll(append(append([]*Frame(nil), all[:5]...), all[6:]...))
		synctest.Wait()
		n, err := resident(first)
		require.NoError(t, err)
		require.Equal(t, FrameBytes, n)
		n, err = resident(second)
		require.NoError(t, err)
		require.LessOrEqual(t, n, FrameBytes, "the one that is ready")
		p.giveAll([]*Frame{stays})
		synctest.Wait()
		for _, gone := range [][]byte{first, second} {
			_, err = resident(gone)
			require.ErrorIs(t, err, syscall.ENOMEM, "it is still mapped")
		}
	})
}

// resident returns the number of bytes of a mapping that have memory, by mincore(2). Unlike smaps,
// which shows adjacent mappings as one, it reports this mapping alone.
func resident(whole []byte) (n int, err error) {
	pages := make([]byte, len(whole)/systemPage)
	_, _, errno := syscall.Syscall(syscall.SYS_MINCORE, uintptr(unsafe.Pointer(&whole[0])), uintptr(len(whole)), uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		return 0, errno
	}
	for _, p := range pages {
		n += int(p&1) * systemPage
	}
	return n, nil
}
