package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/cometbft/cometbft/libs/log"
	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/storage/blocks"
)

// failingHome makes the test program a node on that home. Its disk fails from SIGUSR1 on, in the
// way failingHow.
const (
	failingHome = "STARLING_TEST_FAILING_HOME"
	failingHow  = "STARLING_TEST_FAILING_HOW"
)

// The ways in which tables fail. nothing: the test itself damages them.
const (
	readEIO     = "read EIO"
	writeEIO    = "write EIO"
	writeEDQUOT = "write EDQUOT"
	atOnce      = "at once, " // without SIGUSR1
	nothing     = ""
)

// failingDisk fails with an operation on tables in folder.
func failingDisk(how, folder string) vfs.FS {
	var broken atomic.Bool
	name, immediately := strings.CutPrefix(how, atOnce)
	broken.Store(immediately)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	go func() {
		<-signals
		broken.Store(true)
	}()
	return errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !broken.Load() || !strings.HasSuffix(op.Path, ".sst") || filepath.Base(filepath.Dir(op.Path)) != folder {
			return nil
		}
		switch {
		case name == readEIO && op.Kind == errorfs.OpFileReadAt, name == writeEIO && op.Kind == errorfs.OpFileWrite:
			return syscall.EIO
		case name == writeEDQUOT && op.Kind == errorfs.OpFileWrite:
			return syscall.EDQUOT
		}
		return nil
	}))
}

// runOnAFailingDisk ends the process as starlingd does.
func runOnAFailingDisk(home, how string) {
	zone, how, _ := strings.Cut(how, ": ")
	conf, err := config.Load(home, viper.New())
	if err == nil {
		// reads come from the disk
		conf.App.Disk.StateInMemory, conf.App.Disk.CacheBytes = false, 64<<10
		var n *Node
		if n, err = New(context.Background(), conf, log.NewNopLogger(), eager, func(o *options) {
			o.faults.state = failingDisk(how, "state")
			if zone == "blocks" {
				o.faults.state = nil
				o.faults.blocks = func(o *blocks.Options) {
					o.FS, o.MemTableBytes, o.Cache = failingDisk(how, "blocks"), 64<<10, nil
				}
			}
		}); err == nil {
			if err = n.Start(context.Background()); err == nil {
				err = <-n.Failed()
			}
			err = errors.Join(err, n.Stop())
		}
	}
	disk.EndProcess(err)
}

// A failing disk under a running or starting node ends it with the reason and the exit status, in
// either zone and in any goroutine.
func TestFailingDisks(t *testing.T) {
	for _, c := range []struct {
		how     string
		flipped string // folder whose tables are damaged while the node runs
		status  int
		says    []string
	}{
		{how: "blocks: " + writeEDQUOT, status: disk.ExitFull, says: []string{"blocks folder", "disk full", "make room"}},
		{how: "blocks: " + writeEIO, status: 1, says: []string{"blocks folder", "input/output error", "check the disk"}},
		{how: "blocks: " + atOnce + writeEDQUOT, status: disk.ExitFull, says: []string{"blocks folder", "disk full", "make room"}},
		{how: "blocks: " + readEIO, status: 1, says: []string{"blocks folder", "input/output error", "check the disk"}},
		{how: "blocks: " + nothing, flipped: "blocks", status: disk.ExitDamaged, says: []string{"damaged", ".sst", "join again"}},
		{how: "state: " + writeEDQUOT, status: disk.ExitFull, says: []string{"state folder", "disk full", "make room"}},
		{how: "state: " + writeEIO, status: 1, says: []string{"state folder", "input/output error", "check the disk"}},
		{how: "state: " + readEIO, status: 1, says: []string{"state folder", "input/output error", "check the disk"}},
		{how: "state: " + nothing, flipped: "state", status: disk.ExitDamaged, says: []string{"damaged", ".sst", "join again"}},
	} {
		t.Run(c.how+c.flipped, func(t *testing.T) {
			t.Parallel() // it waits for blocks
			home, _ := nodetest.Home(t, nil)
			n := start(t, home, log.NewNopLogger())
			client := nodetest.RPC(t, home)
			for i := range 20 {
				nodetest.Put(t, client, fmt.Sprintf("before %d", i), strings.Repeat(fmt.Sprint(i), 10_000))
			}
			require.NoError(t, n.Stop())
			if !strings.Contains(c.how, writeEDQUOT) && !strings.Contains(c.how, writeEIO) {
				require.NoError(t, compactBlocks(t, home)) // so that tables exist
			}

			process := exec.CommandContext(t.Context(), os.Args[0])
			process.Env = append(os.Environ(), failingHome+"="+home, failingHow+"="+c.how)
			var output bytes.Buffer
			process.Stdout, process.Stderr = &output, &output
			_, err := process.StdinPipe() // open until the test ends, in any way
			require.NoError(t, err)
			require.NoError(t, process.Start())
			client = nodetest.RPC(t, home) // not the connections to the previous node
			ended := make(chan error, 1)
			go func() {
				err := process.Wait()
				if err == nil {
					err = errors.New("exit status 0")
				}
				ended <- err
			}()
			if !strings.Contains(c.how, atOnce) {
				nodetest.Until(t, "the node", func() bool {
					_, err := client.Status(t.Context())
					return err == nil || len(ended) > 0
				})
				require.Empty(t, ended, "it ended before its disk failed: %s", &output)
				attempts := 0
				nodetest.Until(t, "a block", func() bool {
					attempts++
					res, err := client.BroadcastTxCommit(t.Context(), fmt.Appendf(nil, "between %d=x", attempts))
					return err == nil && res.TxResult.Code == 0
				})
				if c.flipped == "" {
					require.NoError(t, process.Process.Signal(syscall.SIGUSR1))
				} else {
					flipTables(t, filepath.Join(home, "data", c.flipped))
				}
			}
			err = underLoad(t, client, ended)
			var status *exec.ExitError
			require.ErrorAs(t, err, &status, output.String())
			require.Equal(t, c.status, status.ExitCode(), output.String())
			for _, text := range c.says {
				require.Contains(t, output.String(), text)
			}
			require.NotContains(t, output.String(), "goroutine ", "a panic is no reason")
		})
	}
}

// underLoad writes keys and reads the whole state and all blocks, until the process has ended.
func underLoad(t *testing.T, client *rpchttp.HTTP, ended <-chan error) error {
	t.Helper()
	var err error
	i := 0
	nodetest.Until(t, "the end of the node", func() bool {
		_, _ = client.BroadcastTxSync(t.Context(), fmt.Appendf(nil, "load %d=%05000d", i%50, i))
		_, _ = client.ABCIQuery(t.Context(), "/key", fmt.Appendf(nil, "before %d", i%20))
		height := int64(1 + i%20)
		_, _ = client.Block(t.Context(), &height)
		i++
		select {
		case err = <-ended:
			return true
		default:
			return false
		}
	})
	return err
}

// flipTables changes a bit in each kilobyte of the tables in a folder, in place, so that processes
// with open files read it.
func flipTables(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".sst") {
			return err
		}
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // compacted meanwhile
		}
		if err != nil {
			return err
		}
		defer file.Close()
		info, err := file.Stat()
		for at := int64(20); err == nil && at < info.Size(); at += 1 << 10 {
			var b [1]byte
			if _, err = file.ReadAt(b[:], at); err == nil {
				b[0] ^= 4
				_, err = file.WriteAt(b[:], at)
			}
		}
		return err
	}))
}
