package relaybench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/starling-kv/starling/bench/guest"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
)

// inGuest runs the whole benchmark in the VM, whose disk is in its memory.
func inGuest(ctx context.Context, o Options, dir string, progress *harness.Progress) (*Result, error) {
	const memory, perBlock = 4096, 3 * validators * validators * blockBytes >> 20 // MiB
	rates := strings.Trim(strings.ReplaceAll(fmt.Sprint(o.Rates), " ", ","), "[]")
	result := new(Result)
	err := guest.Run{
		Args: []string{
			"relay", "--devices", "rxe0", "--starlingd", "./starlingd", "--dir", "/root", "--rounds", strconv.Itoa(o.Rounds), "--blocks", strconv.Itoa(o.Blocks), "--rates", rates,
		},
		Programs: []string{"./cmd/starlingd"}, MemoryMiB: memory + o.Blocks*perBlock,
		Limit: time.Duration(o.Rounds*3*len(o.Rates)) * (network.StartPatience + blockPatience),
	}.JSON(ctx, dir, progress, result)
	if err != nil {
		return nil, err
	}
	result.Guest, result.Machine = true, result.Machine.OnHost()
	return result, nil
}
