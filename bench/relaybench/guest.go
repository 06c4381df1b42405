package relaybench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/starling-kv/starling/bench/guest"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
)

// inGuest runs the whole benchmark in the VM, whose disk is in its memory.
func inGuest(ctx context.Context, o Options, dir string, progress *harness.Progress) (*Result, error) {
	const memory = 4096 // MiB
	largest := slices.Max(o.BlockBytes) >> 20
	rates := strings.Trim(strings.ReplaceAll(fmt.Sprint(o.Rates), " ", ","), "[]")
	result := new(Result)
	err := guest.Run{
		Args: []string{
			"relay", "--devices", "rxe0", "--starlingd", "./starlingd", "--dir", "/root", "--rounds", strconv.Itoa(o.Rounds), "--blocks", strconv.Itoa(o.Blocks), "--rates", rates,
			"--block-bytes", harness.SizesText(o.BlockBytes), "--sends", strconv.Itoa(o.Sends),
		},
		Programs: []string{"./cmd/starlingd"}, MemoryMiB: memory + 3*validators*validators*o.Blocks*max(1, largest),
		Limit: time.Duration(o.Rounds*3*len(o.Rates)*len(o.BlockBytes)) * (network.StartPatience + blockPatience),
	}.JSON(ctx, dir, progress, result)
	if err != nil {
		return nil, err
	}
	result.Guest, result.Machine = true, result.Machine.OnHost()
	return result, nil
}
