package e2e_test

import (
	"bytes"
	"crypto/sha256"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cometbft/cometbft/types"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/durable"
	"github.com/starling-kv/starling/internal/smalldisk"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/signer"
)

// shortPowerOffs is the number of cuts of a plain `go test`, if the variable of kills is not set.
const shortPowerOffs = 4

// A validator's data is on a disk of its own, whose power is cut at random instants while clients
// write: whatever the file system had not sent to the disk is lost. The validator recovers by
// itself, has every acknowledged write, and has signed nothing twice: no other validator has
// evidence against it.
func TestPowerOff(t *testing.T) {
	smalldisk.Alone(t, func() {
		s := settingsOfTorture(t)
		if os.Getenv(killsVariable) == "" {
			s.kills = shortPowerOffs
		}
		s.disk = newDisk(t, s.kills)
		n := newTorture(t, s)
		n.backWithTheNetwork()
		for cut := range s.kills {
			pause(n.ctx, time.Duration(n.random.IntN(1500))*time.Millisecond)
			n.process.Pause()
			before, _ := n.others[0].AppInfo(n.ctx)
			sent := n.lastSigned(before.Height)
			n.disk.cutPower(t, n.process.Kill)
			require.GreaterOrEqual(t, n.validator().Height(), sent, "a signature that was sent is lost")
			n.startVictim()
			n.backWithTheNetwork()
			n.compare()
			n.Logf("cut %d at height %d: back from height %d on disk", cut+1, before.Height, n.rebuiltAt())
		}
		n.stop()
		n.load.wg.Wait()
		n.backWithTheNetwork()
		n.compare()
		last, err := n.others[0].AppInfo(n.ctx)
		require.NoError(t, err)
		rpc := n.rpc(n.others[0])
		for height := int64(1); height <= last.Height; height++ {
			block, err := rpc.Block(n.ctx, &height)
			require.NoError(t, err)
			require.Empty(t, block.Block.Evidence.Evidence, "height %d", height)
		}
	})
}

// lastSigned returns the greatest height, below another one, of a commit with the victim's
// signature; 0: there is none in the last ten.
func (n *torture) lastSigned(below int64) int64 {
	n.Helper()
	validator, rpc := n.validator(), n.rpc(n.others[0])
	for height := below - 1; height > max(0, below-10); height-- {
		commit, err := rpc.Commit(n.ctx, &height)
		require.NoError(n, err)
		for _, s := range commit.Commit.Signatures {
			if s.BlockIDFlag == types.BlockIDFlagCommit && bytes.Equal(s.ValidatorAddress, validator.PrivKey().PubKey().Address()) {
				return height
			}
		}
	}
	return 0
}

// validator returns the victim's signer, with the last signature that is on its disk.
func (n *torture) validator() *signer.Signer {
	n.Helper()
	c, err := config.Load(n.victim.Dir, viper.New())
	require.NoError(n, err)
	validator, err := config.LoadValidator(c.CometBFT)
	require.NoError(n, err)
	return validator
}

// powerDisk is an ext4 in a file, mounted through a loop device: the file holds exactly what the
// file system has sent to the disk.
type powerDisk struct {
	folder, at string
	images     int
}

// The file system does not write by itself for ten minutes, however long a copy of the image takes.
const mountOptions = "loop,commit=600"

// newDisk returns an empty disk for a number of cuts: between two cuts the node writes about
// 1.3 MiB of blocks, which stay.
func newDisk(t *testing.T, cuts int) *powerDisk {
	t.Helper()
	diskBytes := int64(256+2*cuts) << 20
	d := &powerDisk{folder: t.TempDir()}
	smalldisk.Small(t, d.folder, 4*diskBytes)
	for _, program := range []string{"mkfs.ext4", "mount", "umount"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("NOT RUN: power failures (no %s here)", program)
		}
	}
	require.NoError(t, os.WriteFile(d.image(), nil, 0o600))
	require.NoError(t, os.Truncate(d.image(), diskBytes))
	if out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", d.image()).CombinedOutput(); err != nil {
		t.Skipf("NOT RUN: power failures (mkfs.ext4: %v: %s)", err, out)
	}
	return d
}

func (d *powerDisk) image() string { return filepath.Join(d.folder, string(rune('a'+d.images%2))) }

// mount puts the disk at a folder, with the folder's only file.
func (d *powerDisk) mount(t *testing.T, at, file string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(at, file))
	require.NoError(t, err)
	d.at = at
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", mountOptions, d.image(), at).CombinedOutput(); err != nil {
		t.Skipf("NOT RUN: power failures (a loop device cannot be mounted here: %v: %s)", err, out)
	}
	t.Cleanup(func() { _, _ = exec.Command("umount", "--lazy", at).CombinedOutput() }) //nolint:noctx // the test's context has ended
	require.NoError(t, durable.Write(filepath.Join(at, file), content, 0o600))
}

// cutPower replaces the disk by what it holds now, while the process that writes to it is stopped.
// kill ends that process.
func (d *powerDisk) cutPower(t *testing.T, kill func()) {
	t.Helper()
	old := d.image()
	d.images++
	// The kernel may still write what it began before the process was stopped.
	for last := []byte(nil); ; {
		sum := copyImage(t, old, d.image())
		if bytes.Equal(sum, last) {
			break
		}
		last = sum
	}
	kill()
	run := func(args ...string) {
		out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
		require.NoError(t, err, "%v: %s", args, out)
	}
	run("umount", d.at)
	run("mount", "-o", mountOptions, d.image(), d.at)
}

// copyImage copies a disk and returns its hash.
func copyImage(t *testing.T, from, to string) []byte {
	t.Helper()
	in, err := os.Open(from)
	require.NoError(t, err)
	defer in.Close()
	out, err := os.Create(to)
	require.NoError(t, err)
	hash := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, hash), in)
	require.NoError(t, err)
	require.NoError(t, out.Close())
	return hash.Sum(nil)
}
