package transportbench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/starling-kv/starling/bench/guest"
	"github.com/starling-kv/starling/bench/harness"
)

// guestMemory is for two processes with maxPeers, and for the programs in the VM's RAM disk, in
// MiB.
const guestMemory = 3072

// runInGuest builds this program with RDMA, and runs it in the VM.
func runInGuest(ctx context.Context, o Options, dir string, progress *harness.Progress) (*Result, error) {
	if err := guest.Prepare(ctx); err != nil {
		return nil, err
	}
	reference, err := buildReference(ctx, dir)
	if err != nil {
		return nil, err
	}
	result := new(Result)
	err = guest.Run{
		Args: []string{
			"transport", "--devices", guest.Devices, "--reference", "./reference", "--sizes", harness.SizesText(o.Sizes), "--peers", numbers(o.Peers),
			"--rounds", strconv.Itoa(o.Rounds), "--mib", strconv.Itoa(o.MiB), "--limit", o.Limit.String(),
		},
		Files: []string{reference}, MemoryMiB: guestMemory, Limit: o.guestLimit(),
	}.JSON(ctx, dir, progress, result)
	if err != nil {
		return nil, err
	}
	result.Guest, result.Machine = true, result.Machine.OnHost()
	result.Targets = result.targets()
	return result, nil
}

// numbers formats a list as "1,2,4".
func numbers(all []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(all), " ", ","), "[]")
}

// guestLimit is the time limit for the boot and all turns; each turn may have to wait for its last
// responses.
func (o Options) guestLimit() time.Duration {
	turns := o.Rounds * len(o.Peers) * 4 * len(o.Sizes)
	return 3*time.Minute + time.Duration(turns)*(3*o.Limit+time.Second)
}
