package budget

import (
	"math"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// Available returns the smallest of GOMEMLIMIT, the limit of this process's control group, and the
// machine's memory, in bytes. known is false if none of them can be determined.
func Available() (bytes uint64, known bool) {
	least := uint64(math.MaxInt64) // without GOMEMLIMIT
	least = min(least, uint64(debug.SetMemoryLimit(-1)))
	for _, limit := range []memlimit.Provider{memlimit.FromCgroup, memlimit.FromSystem} {
		if n, err := limit(); err == nil && n > 0 {
			least = min(least, n)
		}
	}
	return least, least < math.MaxInt64
}
