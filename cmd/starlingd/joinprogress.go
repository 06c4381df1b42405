package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/starling-kv/starling/node"
)

// joinProgress draws a bar while the node joins, on a terminal. In a log the node's own lines tell.
func joinProgress(out io.Writer) []node.Option {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	var (
		bar *progressbar.ProgressBar
		of  int64 // height
	)
	return []node.Option{node.WithJoinProgress(func(p node.JoinProgress) {
		if p.Bytes == 0 {
			return
		}
		if bar == nil || of != p.Height {
			of = p.Height
			bar = progressbar.NewOptions64(int64(p.Bytes), progressbar.OptionSetWriter(out), progressbar.OptionShowBytes(true),
				progressbar.OptionSetWidth(24), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetPredictTime(true),
				progressbar.OptionClearOnFinish())
		}
		bar.Describe(fmt.Sprintf("height %d, chunks %d/%d, %d peers", p.Height, p.ChunksDone, p.Chunks, p.Peers))
		_ = bar.Set64(int64(min(p.BytesDone, p.Bytes))) // a bar that cannot be drawn is no reason to stop
		if p.Phase == "done" {
			fmt.Fprintf(out, "\nJoined at height %d: %s in %d chunks, %.1f s, %d peers, %d banned, %s there already, %s wasted\n", p.Height,
				byteCount(p.Bytes), p.Chunks, p.Elapsed.Seconds(), p.Peers, p.Banned, byteCount(p.Reused), byteCount(p.Wasted))
		}
	})}
}
