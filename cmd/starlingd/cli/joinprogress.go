package cli

import (
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/starling-kv/starling/node"
	"github.com/starling-kv/starling/node/join"
	"github.com/starling-kv/starling/statesync/catchup"
)

// joinProgress shows the progress of a join on the screen. Without a terminal (nil), the node logs
// its progress.
func joinProgress(s *screen) []node.Option {
	if s == nil {
		return nil
	}
	bar := joinBar{screen: s}
	return []node.Option{node.WithJoinProgress(bar.show), node.WithBlocksProgress(bar.showBlocks)}
}

// joinBar is the last line of a screen while a node joins. The join measures its rate and the
// remaining time.
type joinBar struct{ screen *screen }

func (b joinBar) show(p join.Progress) {
	switch p.Phase {
	case join.PhaseLooking:
		b.screen.show("looking for peers and a snapshot …")
	case join.PhaseVerifying:
		b.screen.show(fmt.Sprintf("height %d: looking for chunks that are already here, %d of %d", p.Height, p.ChunksDone, p.Chunks))
	case join.PhaseWriting:
		b.screen.show(fmt.Sprintf("writing the state of height %d …", p.Height))
	case join.PhaseDone:
		b.screen.show("")
		fmt.Fprintf(b.screen, "Joined at height %d: %s in %s, %.1f s, %s, %d banned, %s already present, %s wasted\n", p.Height,
			humanize.IBytes(p.Bytes), counted(p.Chunks, "chunk"), p.Elapsed.Seconds(), counted(p.Peers, "peer"), p.Banned, humanize.IBytes(p.Reused), humanize.IBytes(p.Wasted))
	default:
		b.screen.show(fetchingLine(p))
	}
}

// fetchingLine labels each figure.
func fetchingLine(p join.Progress) string {
	done := min(p.BytesDone, p.Bytes)
	left := ""
	if p.Left > 0 {
		left = fmt.Sprintf(", about %v left", p.Left.Round(time.Second))
	}
	return fmt.Sprintf("height %d %s  %s of %s, %s/s, %v so far%s, %d of %s, %s", p.Height, bar(float64(done)/float64(max(p.Bytes, 1))),
		humanize.IBytes(done), humanize.IBytes(p.Bytes), humanize.IBytes(p.Rate), p.Elapsed.Round(time.Second), left, p.ChunksDone, counted(p.Chunks, "chunk"), counted(p.Peers, "peer"))
}

// showBlocks shows the progress of blocks fetched over the transport.
func (b joinBar) showBlocks(p catchup.Progress) {
	if p.State == catchup.Normal {
		b.screen.show("")
		fmt.Fprintf(b.screen, "Caught up to block %d: %s, %s in %.1f s, %s, %d banned\n", p.Height, counted(int(p.Blocks), "block"), humanize.IBytes(p.Bytes),
			p.Elapsed.Seconds(), counted(p.Peers, "peer"), p.Banned)
		return
	}
	b.screen.show(blocksLine(p))
}

// blocksLine labels each figure.
func blocksLine(p catchup.Progress) string {
	left := ""
	if p.Left > 0 {
		left = fmt.Sprintf(", about %v left", p.Left.Round(time.Second))
	}
	first := p.Height - p.Blocks
	return fmt.Sprintf("block %d of %d %s  %.1f blocks/s, %s/s, %v so far%s, %s", p.Height, p.Target,
		bar(float64(p.Blocks)/float64(max(p.Target-first, 1))), p.BlockRate, humanize.IBytes(p.Rate), p.Elapsed.Round(time.Second), left, counted(p.Peers, "peer"))
}
