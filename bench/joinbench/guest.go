package joinbench

import (
	"context"
	"strconv"
	"time"

	"github.com/starling-kv/starling/bench/guest"
	"github.com/starling-kv/starling/bench/harness"
)

// inGuest runs the whole benchmark in the VM. The VM's disk is in its memory, which must hold the
// chain in two homes at a time.
func inGuest(ctx context.Context, o Options, dir string, progress *harness.Progress) (*Result, error) {
	const programs = 2048 // MiB, including running processes
	result := new(Result)
	err := guest.Run{
		Args: []string{
			"join", "--devices", "rxe0", "--starlingd", "./starlingd", "--dir", "/root", "--blocks", strconv.Itoa(o.Blocks), "--block-bytes", strconv.Itoa(o.BlockBytes),
			"--value-bytes", strconv.Itoa(o.ValueBytes), "--rounds", strconv.Itoa(o.Rounds), "--seed", strconv.FormatUint(o.Seed, 10), "--patience", o.Patience.String(),
		},
		Programs: []string{"./cmd/starlingd"}, MemoryMiB: programs + 12*(o.Blocks*o.BlockBytes>>20),
		Limit: time.Duration(ways*o.Rounds+1) * o.Patience,
	}.JSON(ctx, dir, progress, result)
	if err != nil {
		return nil, err
	}
	result.Guest, result.Machine = true, result.Machine.OnHost()
	return result, nil
}
