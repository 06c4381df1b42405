package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/starling-kv/starling/node"
	"github.com/starling-kv/starling/node/join"
)

// joinProgress draws a bar on a terminal while the node joins. In a log, the node's own lines show
// it.
func joinProgress(out io.Writer) []node.Option {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	var (
		bar *progressbar.ProgressBar
		of  int64 // height
	)
	return []node.Option{conversionProgress(out), node.WithJoinProgress(func(p join.Progress) {
		if p.Bytes == 0 {
			return
		}
		if bar == nil || of != p.Height {
			of = p.Height
			bar = progressbar.NewOptions64(int64(p.Bytes), progressbar.OptionSetWriter(out), progressbar.OptionShowBytes(true),
				progressbar.OptionSetWidth(24), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetPredictTime(true),
				progressbar.OptionClearOnFinish())
		}
		bar.Describe(fmt.Sprintf("height %d, chunks %d/%d, %s", p.Height, p.ChunksDone, p.Chunks, counted(p.Peers, "peer")))
		// a bar that cannot be drawn is not a reason to stop
		_ = bar.Set64(int64(min(p.BytesDone, p.Bytes)))
		if p.Phase == "done" {
			fmt.Fprintf(out, "\nJoined at height %d: %s in %s, %.1f s, %s, %d banned, %s already present, %s wasted\n", p.Height,
				humanize.IBytes(p.Bytes), counted(p.Chunks, "chunk"), p.Elapsed.Seconds(), counted(p.Peers, "peer"), p.Banned, humanize.IBytes(p.Reused), humanize.IBytes(p.Wasted))
		}
	})}
}

// conversionProgress draws a bar while a state of an older version is converted.
func conversionProgress(out io.Writer) node.Option {
	var p *progress
	return node.WithConversionProgress(func(done, total uint64) {
		if p == nil {
			p = newProgress(out, bytesUnit, int(total), int(done))
		}
		if p.at(int(done)); done >= total {
			p.end()
		}
	})
}
