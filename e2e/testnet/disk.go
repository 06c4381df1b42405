package testnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/starling-kv/starling/e2e/manifest"
	"github.com/starling-kv/starling/internal/smalldisk"
)

const (
	// diskBytes is the size of a disk to be filled, and ballastLeaves the space that the ballast
	// leaves: less than the node's minimum ([disk] min_free_bytes), but enough to close its files.
	diskBytes     = 256 << 20
	ballastLeaves = 24 << 20
	// statusDiskFull is the exit status of a node whose disk is full.
	statusDiskFull = 5
)

// mountDisks mounts a small disk for each node whose disk a step fills. If this is not permitted,
// the step is skipped.
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
		err := smalldisk.Mount(disk, diskBytes)
		if errors.Is(err, smalldisk.ErrNotPermitted) {
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
		errs = append(errs, smalldisk.Unmount(disk))
	}
	n.disks = nil
	return errors.Join(errs...)
}

// fillDisks fills the disks of nodes: each node must end by itself, with the exit status for a full
// disk, and start again once there is space.
func (n *Network) fillDisks(ctx context.Context, nodes []*Node) error {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(node *Node) bool {
		_, small := n.disks[node]
		if !small {
			n.log("NOT RUN: full-disk of %s: %v", node.Name, smalldisk.ErrNotPermitted)
		}
		return !small
	})
	ended := func(ctx context.Context, node *Node) error {
		n.options.Provider.MayEnd(node)
		ballast := filepath.Join(n.disks[node], "ballast")
		if err := fill(n.disks[node], ballast); err != nil {
			return fmt.Errorf("%s: %w", node.Name, err)
		}
		ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("still running on a full disk after %v", patience))
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

// fill writes a ballast that leaves ballastLeaves bytes free on a disk.
func fill(disk, ballast string) error {
	free, err := smalldisk.Free(disk)
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
