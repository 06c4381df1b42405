package testnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/starling-kv/starling/e2e/manifest"
)

const (
	// diskBytes is the size of a disk that is to become full, and ballastLeaves what a ballast
	// leaves of it: less than what a node wants to see ([storage] min_free_bytes), enough for
	// closing its files.
	diskBytes     = 256 << 20
	ballastLeaves = 24 << 20
	// statusDiskFull is the exit status of a node that ended because its disk is full.
	statusDiskFull = 5
)

// errNoDisk says that no small disk can be made here.
var errNoDisk = errors.New("a small disk is a tmpfs, which takes root on Linux")

// mountDisks makes a small disk for each node that a step lets run out of space. Where that cannot
// be, the step is left out.
func (n *Network) mountDisks() error {
	n.disks = map[*Node]string{}
	for _, node := range n.nodes {
		if !slices.ContainsFunc(n.Manifest.Steps, func(s manifest.Step) bool {
			return s.Do == manifest.FullDisk && slices.Contains(s.Nodes, node.Name)
		}) {
			continue
		}
		disk := filepath.Join(n.options.Dir, node.Name+"-disk")
		if err := os.MkdirAll(disk, 0o755); err != nil {
			return err
		}
		err := mountDisk(disk, diskBytes)
		if errors.Is(err, errNoDisk) {
			n.log("NOT RUN: full-disk of %s: %v", node.Name, err)
			continue
		}
		if err != nil {
			return err
		}
		n.disks[node] = disk
	}
	return nil
}

func (n *Network) unmountDisks() error {
	var errs []error
	for _, disk := range n.disks {
		errs = append(errs, unmountDisk(disk))
	}
	n.disks = nil
	return errors.Join(errs...)
}

// fillDisks lets nodes run out of space: each must end by itself, with the exit status for that,
// and start again when there is some.
func (n *Network) fillDisks(ctx context.Context, nodes []*Node) error {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(node *Node) bool {
		_, small := n.disks[node]
		if !small {
			n.log("NOT RUN: full-disk of %s: %v", node.Name, errNoDisk)
		}
		return !small
	})
	ended := func(ctx context.Context, node *Node) error {
		n.options.Provider.MayEnd(node)
		ballast := filepath.Join(n.disks[node], "ballast")
		if err := fill(n.disks[node], ballast); err != nil {
			return fmt.Errorf("%s: %w", node.Name, err)
		}
		ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it still runs on a full disk after %v", patience))
		defer cancel()
		status, err := n.options.Provider.Ended(ctx, node)
		if err != nil {
			return err
		}
		if status != statusDiskFull {
			return fmt.Errorf("%s: on a full disk it ended with exit status %d, not %d; its log: %s", node.Name, status, statusDiskFull, node.Home.Log())
		}
		return os.Remove(ballast)
	}
	return n.whileDown(ctx, nodes, ended, func(*Node) error { return nil })
}

// fill writes a ballast that leaves a disk ballastLeaves.
func fill(disk, ballast string) error {
	free, err := freeBytes(disk)
	if err != nil {
		return err
	}
	file, err := os.Create(ballast)
	if err != nil {
		return err
	}
	zeros := make([]byte, 1<<20)
	for left := free - ballastLeaves; left > 0 && err == nil; left -= int64(len(zeros)) {
		_, err = file.Write(zeros[:min(left, int64(len(zeros)))])
	}
	return errors.Join(err, file.Close())
}
